//! Files that are whole or absent, whatever crashes: written beside their place, synced, then moved in.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::random;

/// Readable and writable by the owner alone.
pub const PRIVATE: u32 = 0o600;
/// Readable by everybody.
pub(crate) const PUBLIC: u32 = 0o644;

/// Makes a folder (and its parents) that only the owner may enter. An existing one is left as it is.
pub fn private_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Puts a file in place unless one is there already. `false` means that somebody else's stands.
pub(crate) fn create(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    let temporary = write_beside(path, content, mode)?;
    // A hard link, unlike a rename, never replaces: of two processes that start at once one wins.
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Ok(()) => sync_folder(path).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts a file in place, over an older one if there is one.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let temporary = write_beside(path, content, mode)?;
    fs::rename(&temporary, path).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    sync_folder(path)
}

/// Waits for this process's turn to change a file that others of its user change, too: from reading it until the new
/// one is in its place. The turn ends with what is returned. Without it where the file system knows no locks: then
/// the file is still whole at any time, but of two changes at once one may be lost.
pub fn turn(path: &Path) -> Option<File> {
    // The folder: what stands at the path itself is replaced, and a lock on it would go with it.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

fn write_beside(path: &Path, content: &[u8], mode: u32) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let nonce = hex::encode(random::bytes::<8>().map_err(io::Error::other)?);
    let temporary = path.with_file_name(format!(".{name}.{nonce}.tmp"));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(temporary)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn changes_made_in_turns_are_all_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for line in 0..25 {
                        let _turn = turn(path).unwrap();
                        let before = fs::read_to_string(path).unwrap_or_default();
                        replace(path, format!("{before}{writer} {line}\n").as_bytes(), PRIVATE).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 100);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn the_first_creator_wins_and_nothing_is_left_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/key");
        private_folder(path.parent().unwrap()).unwrap();
        let wins: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8u8)
                .map(|n| {
                    scope.spawn({
                        let path = &path;
                        move || create(path, &[n; 100], PRIVATE).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
        });
        assert_eq!(wins, 1);
        let content = fs::read(&path).unwrap();
        assert!(content.len() == 100 && content.iter().all(|byte| *byte == content[0]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE);
        replace(&path, b"new", PUBLIC).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_in_the_way_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"x", PRIVATE).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
