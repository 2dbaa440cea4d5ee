//! The folder of a pod, from which nothing escapes.
//!
//! Containers write into parts of it and may leave links, pipes and devices there. So every path
//! is opened part by part below a folder that is held open, links are never followed, and only
//! plain files are read. Volumes of files are replaced all at once, as a kubelet does it: a new
//! hidden folder, then one rename of the link `..data`.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};

use crate::plan::{Content, Files, Plan, RelPath, Volume};

/// Links are refused and `..` cannot lead out.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// The link to the current files of a volume.
const DATA: &str = "..data";
/// Only the owner looks into a pod's folder; containers see the parts that are mounted.
const PRIVATE: u32 = 0o700;

/// A folder that is held open, and its path for those who can only be told paths.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// Opens a folder of our own, making it and its parents.
    pub fn create(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        Self::open(path)
    }

    /// Opens a folder of our own.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder in it, made if it is not there, with these permissions.
    pub fn child(&self, name: &RelPath, mode: u32) -> io::Result<Self> {
        let mut here = Self { fd: self.fd.try_clone()?, path: self.path.clone() };
        for part in name.parts() {
            match fs::mkdirat(&here.fd, part, Mode::from_raw_mode(mode)) {
                // The permissions asked for, whatever the umask.
                Ok(()) => fs::chmodat(&here.fd, part, Mode::from_raw_mode(mode), AtFlags::empty())?,
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            here = here.enter(part)?;
        }
        Ok(here)
    }

    /// A folder in it that is there already.
    pub fn enter(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = fs::openat2(&self.fd, name, flags, Mode::empty(), BELOW)?;
        Ok(Self { fd, path: self.path.join(name) })
    }

    /// Writes a file in it at once: readers see the old content or the new one.
    pub fn write(&self, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
        let (part, _) = self.write_part(name, content, mode)?;
        Ok(fs::renameat(&self.fd, &part, &self.fd, name)?)
    }

    /// Writes a file like [`write`](Self::write); the old content or the new one is there after a power failure
    /// too, and once this returns it is the new one.
    pub fn keep(&self, name: &str, content: &[u8], mode: u32) -> io::Result<()> {
        let (part, file) = self.write_part(name, content, mode)?;
        file.sync_all()?;
        fs::renameat(&self.fd, &part, &self.fd, name)?;
        self.sync()
    }

    /// Waits until the names in it are on the disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.fd)?)
    }

    /// Writes what is to become a file, under a name of its own.
    fn write_part(&self, name: &str, content: &[u8], mode: u32) -> io::Result<(String, File)> {
        let part = format!("..{name}.new");
        match fs::unlinkat(&self.fd, &part, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let file = self.write_new(&part, content, mode)?;
        Ok((part, file))
    }

    fn write_new(&self, name: &str, content: &[u8], mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = fs::openat2(&self.fd, name, flags, Mode::from_raw_mode(0o600), BELOW)?;
        fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
        let mut file = File::from(fd);
        file.write_all(content)?;
        Ok(file)
    }

    /// Makes an empty file unless something of that name is there.
    pub fn touch(&self, name: &str, mode: u32) -> io::Result<()> {
        match self.write_new(name, b"", mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map(drop),
        }
    }

    /// Whether something of that name is in it.
    pub fn has(&self, name: &str) -> bool {
        fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The beginning of a plain file; anything else is refused, and nothing is waited for.
    pub fn read(&self, name: &str, at_most: u64) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        self.open_file(name)?.take(at_most).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Opens a plain file for reading.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = fs::openat2(&self.fd, name, flags, Mode::empty(), BELOW)?;
        if FileType::from_raw_mode(fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a plain file"));
        }
        Ok(File::from(fd))
    }

    /// Text of a small plain file, or `None` where there is none.
    pub fn text(&self, name: &str) -> Option<String> {
        let bytes = self.read(name, 64 * 1024).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The end of a plain file: at most so many bytes and lines; nothing where there is none.
    pub fn tail(&self, name: &str, bytes: u64, lines: usize) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = self.open_file(name)?;
            let start = file.metadata()?.len().saturating_sub(bytes);
            file.seek(io::SeekFrom::Start(start))?;
            let mut end = Vec::new();
            file.take(bytes).read_to_end(&mut end)?;
            Ok(end)
        };
        let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
        let ends: Vec<usize> =
            text.trim_end_matches('\n').rmatch_indices('\n').map(|(at, _)| at + 1).collect();
        let start = lines.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or_default();
        text[start..].to_owned()
    }

    /// Whether a file in it was written by us, rather than by whom the folder was given to.
    pub fn is_own(&self, name: &str) -> bool {
        let found = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| found.st_uid == rustix::process::geteuid().as_raw())
    }

    /// The user and the group of what has this name in it.
    pub fn owner(&self, name: &str) -> Option<(u32, u32)> {
        let found = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((found.st_uid, found.st_gid))
    }

    /// Gives a file in it to a user.
    pub fn give(&self, name: &str, user: u32) -> io::Result<()> {
        let user = Some(fs::Uid::from_raw(user));
        Ok(fs::chownat(&self.fd, name, user, None, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Gives it to a user, with all in it.
    pub fn give_all(&self, user: u32) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|_| io::ErrorKind::InvalidData)?;
            if entry.file_type()?.is_dir() {
                self.enter(&name)?.give_all(user)?;
            } else {
                self.give(&name, user)?;
            }
        }
        Ok(fs::fchown(&self.fd, Some(fs::Uid::from_raw(user)), None)?)
    }

    /// Removes a file; one that is not there is removed already.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces all files of a volume at once. Does nothing if they are the same already.
    pub fn replace_files(&self, files: &Files) -> io::Result<()> {
        let current = fs::readlinkat(&self.fd, DATA, Vec::new()).ok();
        let current = current.and_then(|link| link.into_string().ok()).filter(|name| is_version(name));
        if let Some(current) = &current
            && self.holds(current, files)
        {
            return Ok(());
        }
        let number = current.as_deref().and_then(|name| name[2..].parse::<u64>().ok()).unwrap_or_default();
        let version = format!("..{}", number + 1);
        // Leftovers of a write that was cut off.
        remove_tree(&self.path.join(&version))?;
        fs::mkdirat(&self.fd, &version, Mode::from_raw_mode(0o755))?;
        fs::chmodat(&self.fd, &version, Mode::from_raw_mode(0o755), AtFlags::empty())?;
        let new = self.enter(&version)?;
        for (path, file) in files {
            let (mut folder, mut parts) = (None::<Folder>, path.parts().peekable());
            while let Some(part) = parts.next() {
                let here = folder.as_ref().unwrap_or(&new);
                if parts.peek().is_none() {
                    here.write_new(part, &file.content, file.mode)?;
                } else {
                    let part = RelPath::new(part).map_err(io::Error::other)?;
                    folder = Some(here.child(&part, 0o755)?);
                }
            }
        }
        let link = format!("..link{}", number + 1);
        self.remove(&link)?;
        fs::symlinkat(&version, &self.fd, &link)?;
        fs::renameat(&self.fd, &link, &self.fd, DATA)?;
        self.link_entries(files)?;
        if let Some(current) = current {
            remove_tree(&self.path.join(current))?;
        }
        Ok(())
    }

    /// One link for each first part, through `..data`, and none for what is no more.
    fn link_entries(&self, files: &Files) -> io::Result<()> {
        let wanted: std::collections::BTreeSet<&str> = files.keys().map(RelPath::first).collect();
        for entry in std::fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            if !name.starts_with("..") && !wanted.contains(name) {
                self.remove(name)?;
            }
        }
        for name in wanted {
            match fs::symlinkat(format!("{DATA}/{name}"), &self.fd, name) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn holds(&self, version: &str, files: &Files) -> bool {
        let Ok(folder) = self.enter(version) else { return false };
        let same = files.iter().all(|(path, file)| {
            let limit = file.content.len() as u64 + 1;
            folder.read(path.as_str(), limit).is_ok_and(|content| content == file.content)
        });
        same && count_files(folder.path()) == files.len()
    }
}

fn is_version(name: &str) -> bool {
    name.strip_prefix("..").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

fn count_files(path: &Path) -> usize {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .map(
            |entry| {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) { count_files(&entry.path()) } else { 1 }
            },
        )
        .sum()
}

/// Removes a folder with all in it, following no links; one that is not there is gone already.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The folders and files of a plan below the folder of its pod.
pub fn lay_out(pod: &Folder, plan: &Plan) -> io::Result<()> {
    for volume in &plan.volumes {
        lay_out_volume(pod, volume)?;
    }
    for container in plan.all() {
        for mount in &container.mounts {
            let volume = &plan.volumes[mount.volume];
            // A part of an empty volume is a folder; parts of others are there or are not.
            if let (Some(part), Content::Empty) = (&mount.sub_path, &volume.content) {
                pod.child(&volume.folder, 0o777)?.child(part, 0o777)?;
            }
        }
    }
    let messages = pod.child(&messages(), 0o755)?;
    for container in plan.all() {
        messages.touch(&container.name, 0o666)?;
    }
    Ok(())
}

/// Writes one volume, again if it changed.
pub fn lay_out_volume(pod: &Folder, volume: &Volume) -> io::Result<()> {
    match &volume.content {
        Content::Empty => pod.child(&volume.folder, 0o777).map(drop),
        Content::Files(files) => pod.child(&volume.folder, 0o755)?.replace_files(files),
        Content::Host(_) => Ok(()),
    }
}

/// The folder of last messages.
pub fn messages() -> RelPath {
    part("messages")
}

/// The real place of a mount on this host. The path is walked once more without following links,
/// since a container may have put one in the way since it was made.
pub fn mount_source(pod: &Folder, plan: &Plan, mount: &crate::plan::Mount) -> io::Result<PathBuf> {
    let volume = &plan.volumes[mount.volume];
    let root = match &volume.content {
        Content::Host(path) => Folder::open(path)?,
        _ => pod.enter(volume.folder.as_str())?,
    };
    let Some(part) = &mount.sub_path else { return Ok(root.path) };
    if let Content::Files(_) = volume.content {
        // Through the link of our own making, which is resolved here rather than by a stranger.
        let version = fs::readlinkat(&root.fd, DATA, Vec::new())?.into_string().map_err(io::Error::other)?;
        if !is_version(&version) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the link `..data` is not ours"));
        }
        let current = root.enter(&version)?;
        fs::openat2(&current.fd, part.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BELOW)?;
        return Ok(current.path.join(part.as_str()));
    }
    fs::openat2(&root.fd, part.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BELOW)?;
    Ok(root.path.join(part.as_str()))
}

/// The folder of a pod below the data root, private to us.
pub fn pod_folder(root: &Path, name: &str) -> io::Result<Folder> {
    let name = RelPath::new(name).map_err(io::Error::other)?;
    Folder::create(root)?.child(&name, PRIVATE)
}

/// A path of our own that is known to be good.
pub(crate) fn part(name: &'static str) -> RelPath {
    RelPath::new(name).unwrap_or_else(|_| unreachable!("a name of our own"))
}
