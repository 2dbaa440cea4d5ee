//! The files of images, made from programs of this machine and never pulled.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use anyhow::{Context, Result};
use tokio::process::Command;

use crate::tools;

/// Puts a static busybox with all its applets below `root`.
pub async fn shell(root: &Path) -> Result<()> {
    let busybox = tools::busybox().await?;
    for folder in ["bin", "etc", "tmp"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    let users = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
    fs::write(root.join("etc/passwd"), users)?;
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    fs::copy(&busybox, root.join("bin/busybox")).context("copy busybox")?;
    let applets = Command::new(&busybox).arg("--list").output().await.context("list busybox's applets")?;
    for applet in String::from_utf8_lossy(&applets.stdout).lines().filter(|applet| *applet != "busybox") {
        let link = root.join("bin").join(applet);
        if link.symlink_metadata().is_err() {
            symlink("busybox", link)?;
        }
    }
    Ok(())
}
