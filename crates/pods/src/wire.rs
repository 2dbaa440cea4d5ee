//! The words of interLink, both generations, exactly as they travel.
//!
//! Written like Go writes them, read like Go reads them: keys in any case, `null` and absent
//! alike, unknown keys ignored. Kubernetes' own objects inside keep their exact names.

pub mod body;
pub mod create;
pub mod extension;
mod fold;
pub mod lines;
pub mod logs;
pub mod origin;
pub mod ping;
pub mod status;

pub use body::{BadBody, Items, read, read_items};
pub use create::{CreateReply, PodCreate, RetrievedContainer, RetrievedPod};
pub use extension::{ContainerUsage, ExecRequest, Frame, PodUpdate, PodUsage};
pub use logs::{BadLogRequest, LogOptions, LogRequest, is_label};
pub use origin::Origin;
pub use ping::{Accelerator, PingReply, Resources, SystemInfo, Taint};
pub use status::{PodRef, PodStatus};

/// The header that names one call on its way through all hops.
pub const SESSION_HEADER: &str = "interlink-http-session";

/// A pod UID: lower-case hexadecimal digits, 8-4-4-4-12. UIDs become names of folders and jobs.
pub fn is_uid(text: &str) -> bool {
    let groups = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = text.split('-').collect();
    parts.len() == groups.len()
        && parts.iter().zip(groups).all(|(part, length)| {
            part.len() == length && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        })
}
