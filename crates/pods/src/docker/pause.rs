//! The image of the container that holds a pod's network: one program that does nothing.
//!
//! It is made here and given to the daemon, so that no registry has to be reachable for it. The
//! program is a complete executable of one loop around the `pause` system call.

use bollard::query_parameters::CreateImageOptions;
use bollard::{Docker as Api, body_full};
use bytes::Bytes;
use futures::TryStreamExt;

use super::engine::{failed, status};
use crate::error::RunError;

/// The name of the image. The tag counts changes of its content.
pub(super) const IMAGE: &str = "tarbet-pause:1";
/// The program in it.
pub(super) const PROGRAM: &str = "/pause";

/// Makes sure that the daemon has the image.
pub(super) async fn ensure(api: &Api) -> Result<(), RunError> {
    match api.inspect_image(IMAGE).await {
        Ok(_) => return Ok(()),
        Err(error) if status(&error) == Some(404) => {}
        Err(error) => return Err(failed("look for the pause image")(error)),
    }
    let (repo, tag) = IMAGE.split_once(':').unwrap_or((IMAGE, "1"));
    let options = CreateImageOptions {
        from_src: Some("-".into()),
        repo: Some(repo.into()),
        tag: Some(tag.into()),
        ..Default::default()
    };
    let archive = archive(PROGRAM.trim_start_matches('/'), &program()?);
    let made = api.create_image(Some(options), Some(body_full(Bytes::from(archive))), None);
    made.try_collect::<Vec<_>>().await.map(drop).map_err(failed("make the pause image"))
}

/// Where the program is loaded.
const BASE: u64 = 0x40_0000;
/// The headers of the file and of its one segment.
const HEADERS: u64 = 64 + 56;

/// A program for this machine's kind of processor, which is the daemon's too.
fn program() -> Result<Vec<u8>, RunError> {
    let (machine, code): (u16, &[u8]) = match std::env::consts::ARCH {
        // mov eax, 34 (pause); syscall; jmp back
        "x86_64" => (62, &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7]),
        // mov x8, 73 (ppoll); mov x0..x4, 0; svc 0; b back
        "aarch64" => (
            183,
            &[
                0x28, 0x09, 0x80, 0xd2, 0, 0, 0x80, 0xd2, 1, 0, 0x80, 0xd2, 2, 0, 0x80, 0xd2, 3, 0, 0x80,
                0xd2, 4, 0, 0x80, 0xd2, 1, 0, 0, 0xd4, 0xf9, 0xff, 0xff, 0x17,
            ],
        ),
        other => {
            return Err(RunError::Unsupported(format!("there is no pause program for {other} processors")));
        }
    };
    let size = HEADERS + code.len() as u64;
    let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut put = |bytes: &[u8]| elf.extend_from_slice(bytes);
    // An executable, its machine, version 1, where it begins, where the program header is.
    put(&2u16.to_le_bytes());
    put(&machine.to_le_bytes());
    put(&1u32.to_le_bytes());
    put(&(BASE + HEADERS).to_le_bytes());
    put(&64u64.to_le_bytes());
    put(&0u64.to_le_bytes());
    put(&0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        put(&half.to_le_bytes());
    }
    // One segment: the whole file, readable and executable.
    put(&1u32.to_le_bytes());
    put(&5u32.to_le_bytes());
    for word in [0, BASE, BASE, size, size, 0x1000] {
        put(&word.to_le_bytes());
    }
    put(code);
    Ok(elf)
}

/// A tar archive with one executable file.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    let mut field = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(0, name);
    field(100, "0000755\0");
    field(108, "0000000\0");
    field(116, "0000000\0");
    field(124, &format!("{:011o}\0", content.len()));
    field(136, "00000000000\0");
    field(156, "0");
    field(257, "ustar\0");
    field(263, "00");
    // The sum counts its own field as blanks.
    field(148, "        ");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    // Whole blocks, and two empty ones at the end.
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}
