//! The form in which the plugin takes pods: one object, or a list of one as those before 0.5 do.

use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the original's plugins refuse every create that did not work, whatever the reason; the one for Docker
/// refuses whatever is not a list with it.
const FIXED_WORDS: &str = "Some errors occurred while creating container";

/// The form in which pods are sent to the plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PluginBody {
    /// As objects, and as lists to a plugin that cannot read those.
    #[default]
    Auto,
    /// As objects, as plugins since 0.5 want them.
    Object,
    /// As lists, as older plugins and the original's for Docker want them.
    List,
}

/// What is known of the form.
pub(super) struct Form {
    wanted: PluginBody,
    list: AtomicBool,
    /// A pod was taken in it.
    proven: AtomicBool,
}

impl Form {
    pub(super) fn new(wanted: PluginBody) -> Self {
        let list = AtomicBool::new(wanted == PluginBody::List);
        Self { wanted, list, proven: AtomicBool::new(wanted != PluginBody::Auto) }
    }

    /// Whether the next pod is sent as a list.
    pub(super) fn is_list(&self) -> bool {
        self.list.load(Ordering::Relaxed)
    }

    /// The plugin took a pod in this form.
    pub(super) fn took(&self, list: bool) {
        self.list.store(list, Ordering::Relaxed);
        self.proven.store(true, Ordering::Relaxed);
    }

    /// Whether a refusal may mean that the plugin could not read the pod, so that it did nothing with it.
    pub(super) fn unread(&self, status: StatusCode, words: &str) -> bool {
        if self.wanted != PluginBody::Auto {
            return false;
        }
        let said = words.contains("unmarshal") || words.contains("TB-0501");
        let fixed = words.trim_start().starts_with(FIXED_WORDS) && !self.proven.load(Ordering::Relaxed);
        status == StatusCode::UNPROCESSABLE_ENTITY || (status.is_server_error() && (said || fixed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_words_say_nothing_once_a_pod_was_taken() {
        let form = Form::new(PluginBody::Auto);
        let words = format!("{FIXED_WORDS}. Check Docker Sidecar's logs");
        let refused = StatusCode::INTERNAL_SERVER_ERROR;
        assert!(!form.is_list() && form.unread(refused, &words));
        assert!(!form.unread(StatusCode::BAD_REQUEST, &words) && !form.unread(refused, "no room"));
        form.took(true);
        assert!(form.is_list() && !form.unread(refused, &words));
        assert!(form.unread(refused, "json: cannot unmarshal array into Go value"), "another plugin came");
        for (wanted, list) in [(PluginBody::Object, false), (PluginBody::List, true)] {
            let form = Form::new(wanted);
            assert!(form.is_list() == list && !form.unread(refused, "json: cannot unmarshal object"));
        }
    }
}
