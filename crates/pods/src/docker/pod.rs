//! One pod on Docker, and what is known of it beside what Docker has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::create;
use super::machine::Slot;
use super::status::Waiting;
use crate::folder::{self, Folder};
use crate::plan::PodId;
use crate::runner::Known;

/// A last message longer than this is cut, as kubelets do.
const MESSAGE_LIMIT: u64 = 4096;

pub(super) struct Pod {
    pub(super) id: PodId,
    pub(super) folder: Folder,
    pub(super) inner: Mutex<Inner>,
    /// Held by whoever acts on the pod's containers.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) wake: Notify,
    pub(super) stop: CancellationToken,
    /// Cancelled once nothing of the pod is left.
    pub(super) gone: CancellationToken,
}

pub(super) struct Inner {
    pub(super) known: Arc<Known>,
    pub(super) generations: HashMap<String, u32>,
    pub(super) waiting: HashMap<String, Waiting>,
    pub(super) messages: HashMap<String, String>,
    /// How often containers were ended to begin again.
    pub(super) ended: HashMap<String, u32>,
    pub(super) deleting: bool,
}

impl Pod {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.lock().known)
    }

    pub(super) fn generation(&self, container: &str) -> u32 {
        self.lock().generations.get(container).copied().unwrap_or_default()
    }

    pub(super) fn name_of(&self, slot: &Slot) -> String {
        match slot {
            Slot::Pause => create::pause_name(&self.id),
            Slot::Container(name) => create::name(&self.id, name, self.generation(name)),
        }
    }

    pub(super) fn set_waiting(&self, container: &str, mut waiting: Waiting) {
        let mut inner = self.lock();
        let again = inner.waiting.get(container).is_some_and(|old| old.message == waiting.message);
        if again && waiting.reason == "ErrImagePull" {
            waiting.reason = "ImagePullBackOff";
        }
        inner.waiting.insert(container.to_owned(), waiting);
    }

    pub(super) fn clear_waiting(&self, container: &str) {
        self.lock().waiting.remove(container);
    }

    pub(super) fn has_message(&self, container: &str) -> bool {
        self.lock().messages.contains_key(container)
    }

    pub(super) fn set_message(&self, container: &str, text: String) {
        self.lock().messages.insert(container.to_owned(), text);
    }

    /// The last message of an ended container.
    pub(super) fn message(&self, container: &str) -> String {
        if let Some(text) = self.lock().messages.get(container) {
            return text.clone();
        }
        self.message_file(container)
    }

    pub(super) fn message_file(&self, container: &str) -> String {
        let messages = self.folder.enter(folder::messages().as_str());
        let bytes = messages.and_then(|folder| folder.read(container, MESSAGE_LIMIT)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
