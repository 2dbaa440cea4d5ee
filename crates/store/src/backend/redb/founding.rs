//! The making of a new store file, which has its name only once it is whole.
//!
//! redb refuses a file whose making was cut off, just as it refuses one that is none of its own: a process that was
//! killed in its first moment would never start again.

use std::fs::{File, TryLockError};
use std::path::Path;

use ::redb::backends::FileBackend;
use ::redb::{Database, DatabaseError, Error};

use super::file::{beside, open_or_make};
use super::tables;

/// Makes the file unless there is something of its name.
pub(super) fn found(path: &Path) -> Result<(), Error> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let new = beside(path, ".new");
    let file = open_or_make(&new)?;
    // Where there are no locks redb does without, too.
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        return Err(DatabaseError::DatabaseAlreadyOpen.into());
    }
    // Whoever held it may have given it its name meanwhile.
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    // What is there was cut off.
    file.set_len(0)?;
    let database = Database::builder().create_with_backend(FileBackend::new(file)?)?;
    tables::prepare(&database)?;
    // Named before it is let go, so that nobody else makes it anew.
    std::fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::RedbConfig;

    #[test]
    fn a_store_whose_making_was_cut_off_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/store.redb");
        let new = beside(&path, ".new");
        for left in [&[][..], &[0; 4096], b"half of it"] {
            std::fs::create_dir_all(new.parent().unwrap()).unwrap();
            std::fs::write(&new, left).unwrap();
            drop(super::super::Redb::open(&RedbConfig::at(&path), Clock::system()).unwrap());
            assert!(path.exists() && !new.exists());
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn of_two_that_make_it_at_once_one_has_it() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("store.redb");
            let open = || super::super::Redb::open(&RedbConfig::at(&path), Clock::system());
            let (one, two) = std::thread::scope(|scope| {
                let two = scope.spawn(open);
                (open(), two.join().unwrap())
            });
            assert!(one.is_ok() || two.is_ok(), "{one:?} {two:?}");
            for refused in [one.err(), two.err()].into_iter().flatten() {
                assert!(matches!(refused, crate::error::Error::Locked { .. }), "{refused:?}");
            }
        }
    }
}
