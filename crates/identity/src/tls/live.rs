//! A configuration that is replaced, whole, when what it was made from changes.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Interval;
use zeroize::Zeroizing;

use super::TlsError;
use crate::hash::sha256_of_parts;

/// No certificate bundle comes near this.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// A clock that goes back less is being set right by routine; certificates begin five minutes early for that.
const STEP: SignedDuration = SignedDuration::from_mins(4);

/// What a look at the files brought.
#[derive(Debug)]
pub enum Refresh {
    /// Nothing new (or the same unusable files as last time).
    Unchanged,
    /// New connections use what is there now.
    Replaced,
    /// What is there now cannot be used; new connections go on with what was there before.
    Refused(TlsError),
}

/// The content of some files at one moment.
///
/// Content is compared, not dates: the files are small, a look every few seconds costs nothing, and a
/// folder swapped under a symbolic link, a restored backup or two writes within a tick are all seen.
pub(super) struct FileSet {
    contents: BTreeMap<PathBuf, Result<Zeroizing<Vec<u8>>, io::ErrorKind>>,
    digest: [u8; 32],
}

impl FileSet {
    pub(super) fn read<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let contents: BTreeMap<_, _> = paths
            .into_iter()
            .map(|path| (path.to_owned(), read(path).map_err(|error| error.kind())))
            .collect();
        let digest = sha256_of_parts(contents.values().flat_map(|content| match content {
            Ok(bytes) => [b"read".as_slice(), bytes.as_slice()],
            Err(_) => [b"failed".as_slice(), b""],
        }));
        Self { contents, digest }
    }

    pub(super) fn get(&self, path: &Path) -> Result<&[u8], TlsError> {
        let failed = |kind| TlsError::ReadFile { path: path.to_owned(), source: io::Error::from(kind) };
        match self.contents.get(path) {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(kind)) => Err(failed(*kind)),
            None => Err(failed(io::ErrorKind::NotFound)),
        }
    }
}

fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    use std::io::Read as _;
    let file = std::fs::File::open(path)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(file.metadata()?.len().min(MAX_FILE) as usize + 1));
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// How to make a configuration of type `Config`.
pub(super) trait Recipe: Send + Sync + 'static {
    type Config: Send + Sync + 'static;

    /// Which files it is made from.
    fn files(&self) -> Vec<&Path>;

    /// Makes it; also says when to make it anew even if no file changes.
    fn make(&self, files: &FileSet, now: Timestamp) -> Result<(Self::Config, Option<Timestamp>), TlsError>;
}

/// The configuration of the moment.
pub(super) struct Live<R: Recipe> {
    recipe: R,
    current: ArcSwap<R::Config>,
    seen: Mutex<Seen>,
}

struct Seen {
    used: [u8; 32],
    refused: Option<[u8; 32]>,
    renew: Option<Timestamp>,
    /// What the clock said when it was made.
    made: Timestamp,
}

impl Seen {
    /// Whether to make it anew although no file changed: its time is up, or the clock went back to before it
    /// began. Else a clock that was ahead for a moment would leave a certificate that nobody accepts for years.
    fn is_due(&self, now: Timestamp) -> bool {
        self.renew.is_some_and(|at| now >= at || now.duration_since(self.made) < -STEP)
    }
}

impl<R: Recipe> Live<R> {
    pub(super) fn start(recipe: R, now: Timestamp) -> Result<Self, TlsError> {
        let files = FileSet::read(recipe.files());
        let (config, renew) = recipe.make(&files, now)?;
        let seen = Mutex::new(Seen { used: files.digest, refused: None, renew, made: now });
        Ok(Self { recipe, current: ArcSwap::from_pointee(config), seen })
    }

    pub(super) fn current(&self) -> Arc<R::Config> {
        self.current.load_full()
    }

    pub(super) fn refresh(&self, now: Timestamp) -> Refresh {
        // Held throughout, so that of two refreshes at once the later reading wins.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let files = FileSet::read(self.recipe.files());
        let due = seen.is_due(now);
        if files.digest == seen.used && !due {
            seen.refused = None;
            return Refresh::Unchanged;
        }
        if seen.refused == Some(files.digest) && !due {
            return Refresh::Unchanged;
        }
        match self.recipe.make(&files, now) {
            Ok((config, renew)) => {
                self.current.store(Arc::new(config));
                *seen = Seen { used: files.digest, refused: None, renew, made: now };
                Refresh::Replaced
            }
            Err(error) => {
                seen.refused = Some(files.digest);
                Refresh::Refused(error)
            }
        }
    }
}

impl<R: Recipe> fmt::Debug for Live<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("files", &self.recipe.files()).finish_non_exhaustive()
    }
}

/// Refreshes on every tick, for ever, and logs what comes of it. Drop the future to stop.
pub(super) async fn follow<R: Recipe>(
    live: Arc<Live<R>>,
    mut timer: Interval,
    clock: impl Fn() -> Timestamp + Send,
) {
    loop {
        timer.tick().await;
        let (live, now) = (Arc::clone(&live), clock());
        let files = format!("{:?}", live.recipe.files());
        // Files may sit on a network; a worker of the runtime must not wait for them.
        match tokio::task::spawn_blocking(move || live.refresh(now)).await {
            Ok(Refresh::Unchanged) => (),
            Ok(Refresh::Replaced) => tracing::info!(files, "TLS certificates replaced."),
            Ok(Refresh::Refused(error)) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(files, %error, source, "New TLS files cannot be used, the old ones stay.");
            }
            Err(error) => tracing::error!(files, %error, "TLS files could not be looked at."),
        }
    }
}
