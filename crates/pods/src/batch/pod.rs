//! One pod that runs as a job, and what its files say.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::script::Share;
use super::states::Marks;
use crate::error::RunError;
use crate::folder::{self, Folder};
use crate::plan::{Container, PodId};
use crate::runner::Known;

/// A last message longer than this is cut, as kubelets do.
const MESSAGE_LIMIT: u64 = 4096;
/// What serves as last message of a failure where the end of the log does.
const LOG_BYTES: u64 = 2048;
const LOG_LINES: usize = 80;
/// How much of what a job said is told where a container has nothing to say.
const SAID_LINES: usize = 10;

pub(super) struct Pod {
    pub(super) id: PodId,
    pub(super) folder: Folder,
    pub(super) inner: Mutex<Inner>,
}

pub(super) struct Inner {
    pub(super) known: Arc<Known>,
    /// The ids of its jobs, as far as they are known.
    pub(super) jobs: Vec<Option<String>>,
    /// How often the queue was seen without the job since it was there last.
    pub(super) missing: u32,
    /// The places of those that have ended, by the queue.
    pub(super) over: Vec<usize>,
    /// The last words that were told to those who watch.
    pub(super) told: String,
    /// The address of the machine that its first job runs on, once the job has told it.
    pub(super) address: Option<IpAddr>,
    /// Why it is not submitted yet, where that is known.
    pub(super) trouble: String,
}

impl Inner {
    pub(super) fn new(known: Known, jobs: Vec<Option<String>>) -> Self {
        let (told, trouble) = (String::new(), String::new());
        Self { known: Arc::new(known), jobs, missing: 0, over: Vec::new(), told, address: None, trouble }
    }
}

impl Known {
    /// The beginning of the names of a container's files.
    pub(super) fn stem(&self, container: &Container) -> String {
        let init = self.plan.init.iter().any(|init| init.name == container.name);
        format!("{}-{}", if init { "init" } else { "run" }, container.name)
    }
}

impl Pod {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.lock().known)
    }

    pub(super) fn unknown(&self, container: &str) -> RunError {
        RunError::UnknownContainer { pod: self.id.uid.clone(), container: container.to_owned() }
    }

    /// Its jobs.
    pub(super) fn shares(&self) -> impl Iterator<Item = Share> + use<> {
        let count = self.lock().jobs.len();
        (0..count).map(move |at| if count == 1 { Share::Whole } else { Share::One(at) })
    }

    /// The job that runs a container.
    pub(super) fn share_of(&self, container: &Container) -> Share {
        let inner = self.lock();
        if inner.jobs.len() == 1 {
            return Share::Whole;
        }
        let containers = &inner.known.plan.containers;
        Share::One(containers.iter().position(|own| own.name == container.name).unwrap_or_default())
    }

    /// The id of a job.
    pub(super) fn job_of(&self, share: Share) -> Option<String> {
        self.lock().jobs.get(share.place()).cloned().flatten()
    }

    /// The ids of all jobs, as they are told.
    pub(super) fn job_ids(&self) -> String {
        self.lock().jobs.iter().flatten().cloned().collect::<Vec<_>>().join(",")
    }

    /// The address of the machine that its first job runs on, as the job tells it.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let noted = self.lock().address;
        if noted.is_some() {
            return noted;
        }
        let told = self.folder.text(&format!("{}.address", Share::Whole.stem()));
        let told = told.and_then(|text| text.parse::<IpAddr>().ok());
        let told = told.filter(can_be_reached);
        self.lock().address = told;
        told
    }

    /// Whether all jobs have been submitted.
    pub(super) fn is_sent(&self) -> bool {
        self.lock().jobs.iter().all(Option::is_some)
    }

    /// What the files of a container say.
    pub(super) fn marks(&self, container: &Container, init: bool) -> Marks {
        let stem = format!("{}-{}", if init { "init" } else { "run" }, container.name);
        let time = |name: &str| -> Option<SystemTime> {
            self.folder.open_file(name).ok()?.metadata().ok()?.modified().ok()
        };
        let status = format!("{stem}.status");
        let code = self.folder.text(&status).and_then(|text| text.parse().ok());
        let ended = code.and_then(|code| time(&status).map(|at| (code, at)));
        let message = ended.map(|_| {
            let messages = self.folder.enter(folder::messages().as_str());
            let bytes =
                messages.and_then(|folder| folder.read(&container.name, MESSAGE_LIMIT)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if text.is_empty() && container.message_from_log && code.is_some_and(|code: i32| code != 0) {
                return self.folder.tail(&format!("{stem}.out"), LOG_BYTES, LOG_LINES);
            }
            text
        });
        let again = self.folder.text(&format!("{stem}.restarts")).unwrap_or_default();
        let mut again = again.split(' ').map(|word| word.parse::<i32>().ok());
        Marks {
            started: time(&format!("{stem}.started")),
            ended,
            message: message.unwrap_or_default(),
            restarts: again.next().flatten().unwrap_or_default(),
            before: again.next().flatten(),
            waiting: self.folder.has(&format!("{stem}.waiting")),
            said: String::new(),
        }
    }

    /// Why a job gave up, else the end of what it wrote itself.
    pub(super) fn last_words(&self, share: Share) -> String {
        let reason = self.folder.text(&format!("{}.failed", share.stem())).filter(|text| !text.is_empty());
        let said = || self.folder.tail(&format!("{}.out", share.stem()), LOG_BYTES, SAID_LINES);
        reason.unwrap_or_else(said).trim().to_owned()
    }

    /// Whether a job has ended, as it says itself or as the queue does.
    pub(super) fn has_ended(&self, share: Share) -> bool {
        self.lock().over.contains(&share.place()) || self.folder.has(&format!("{}.failed", share.stem()))
    }

    /// Whether a job has begun its work.
    pub(super) fn has_begun(&self, share: Share) -> bool {
        self.folder.has(&format!("{}.lock", share.stem()))
    }

    /// The id of the job that has begun its work, as it noted it itself.
    pub(super) fn claimed(&self, share: Share) -> Option<String> {
        self.folder.text(&format!("{}.lock/id", share.stem())).filter(|id| is_job_id(id))
    }

    /// Whether all containers have left their last word.
    pub(super) fn is_over(&self) -> bool {
        let known = self.known();
        let plan = &known.plan;
        let failed = |container: &Container| {
            self.marks(container, true).ended.is_some_and(|(code, _)| !container.sidecar && code != 0)
        };
        // Sidecars end after the others.
        let beside = plan.init.iter().filter(|container| container.sidecar).all(|container| {
            let marks = self.marks(container, true);
            marks.started.is_none() || marks.ended.is_some()
        });
        let main = plan.containers.iter().all(|container| self.marks(container, false).ended.is_some());
        beside && (main || plan.init.iter().any(failed))
    }
}

/// Whether others may reach a machine at this address: loopback is nobody's, and link-local means another machine
/// on each link.
fn can_be_reached(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// Whether this is the id of a job: a number, or for a process two with a dash. What a job notes is its user's word.
fn is_job_id(text: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once('-') {
        Some((process, began)) => number(process) && number(began),
        None => number(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_leads_nowhere_is_not_told() {
        for (text, good) in [
            ("10.1.2.3", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("0.0.0.0", false),
            ("169.254.10.1", false),
            ("224.0.0.1", false),
            ("239.255.0.1", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(can_be_reached(&text.parse().unwrap()), good, "{text}");
        }
    }

    #[test]
    fn only_ids_of_jobs_are_taken_for_ids() {
        for good in ["1", "4711", "312-99812"] {
            assert!(is_job_id(good), "{good}");
        }
        for bad in ["", "-", "1-", "-u", "--user=root", "1 2", "1,2", "1_3", "1-2-3", "1.batch", "\u{661}"] {
            assert!(!is_job_id(bad), "{bad}");
        }
    }
}
