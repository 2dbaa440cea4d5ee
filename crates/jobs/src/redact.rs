//! Takes what looks like a secret out of a log before it leaves the private side.
//!
//! It is a net with holes: a pipeline should not print secrets at all. The forms below are those
//! that tools print by accident.

use std::sync::OnceLock;

use regex::{Captures, Regex, RegexBuilder};

/// What is put in place of a secret.
const GONE: &str = "[redacted]";

/// Forms of secrets; where there is a first group it is kept, as the name of what follows.
const FORMS: [&str; 9] = [
    // Private keys, over several lines, also if the end is cut off.
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)",
    // JSON Web Tokens.
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    // Authorization headers.
    r"(?i)(\b(?:authorization|proxy-authorization)\b\W{1,4}(?:bearer|basic|token)?\s*)[^\s\x22',;]+",
    r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9+/._~-]{16,}=*",
    // Names that say it.
    r#"(?i)([\w.-]*(?:password|passwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w.-]*["']?\s*[:=]\s*)(?:"[^"\n]*"|'[^'\n]*'|[^\s,;&]+)"#,
    // Passwords in URLs.
    r"(\b[a-z][a-z0-9+.-]*://[^/\s:@]*:)[^@\s/]+",
    // Keys of clouds and forges with a form of their own.
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\b(?:ghp|gho|ghu|ghs|ghr|glpat|github_pat|xox[abprs])[_-][A-Za-z0-9_-]{16,}",
    r"\bsk-[A-Za-z0-9_-]{20,}",
];

/// Takes secrets out of texts.
#[derive(Debug, Clone)]
pub struct Redactor {
    more: Vec<String>,
    // Made for the first text: they are half a megabyte, and many controllers never read a log.
    forms: OnceLock<Vec<Regex>>,
}

impl Redactor {
    /// The known forms, and these expressions. One that is not valid is left out; the
    /// configuration is checked before.
    pub fn new(more: &[String]) -> Self {
        Self { more: more.to_vec(), forms: OnceLock::new() }
    }

    fn forms(&self) -> &[Regex] {
        self.forms.get_or_init(|| {
            let build = |form: &str| RegexBuilder::new(form).size_limit(4 << 20).build().ok();
            let all = FORMS.iter().copied().chain(self.more.iter().map(String::as_str));
            all.filter_map(build).collect()
        })
    }

    /// The text without secrets.
    pub fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for form in self.forms() {
            if form.is_match(&text) {
                let replaced = form.replace_all(&text, |found: &Captures<'_>| {
                    // A group is the name before the secret only among our own forms.
                    let name = found.get(1).filter(|name| name.start() == found.get_match().start());
                    format!("{}{GONE}", name.map_or("", |name| name.as_str()))
                });
                text = replaced.into_owned();
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms_of_secrets_are_taken_out() {
        let redactor = Redactor::new(&["internal-[0-9]+".into()]);
        for (text, expected) in [
            ("password=hunter2 next", "password=[redacted] next"),
            ("DB_PASSWORD: 'a b c'", "DB_PASSWORD: [redacted]"),
            (r#"{"api_key": "abc", "x": 1}"#, r#"{"api_key": [redacted], "x": 1}"#),
            ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
            ("curl https://ann:hunter2@host/x", "curl https://ann:[redacted]@host/x"),
            ("id AKIAIOSFODNN7EXAMPLE end", "id [redacted] end"),
            ("t ghp_0123456789abcdef0123", "t [redacted]"),
            ("host internal-42", "host [redacted]"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nok", "[redacted]\nok"),
            ("-----BEGIN PRIVATE KEY-----\nMIIE", "[redacted]"),
            ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-DEF_1", "jwt [redacted]"),
            ("built image sha256:00ff in 3 s", "built image sha256:00ff in 3 s"),
        ] {
            assert_eq!(redactor.redact(text), expected);
        }
    }

    proptest! {
        #[test]
        fn a_secret_after_its_name_never_survives(secret in "[A-Za-z0-9]{8,20}", name in "(PASSWORD|token|my_secret|apiKey)", sep in "(=|: |=\"|: ')") {
            let text = format!("start {name}{sep}{secret} end");
            prop_assert!(!Redactor::new(&[]).redact(&text).contains(&secret), "{}", text);
        }

        #[test]
        fn any_text_is_redacted_without_panic(text in "\\PC*") {
            let redactor = Redactor::new(&[]);
            let once = redactor.redact(&text);
            prop_assert!(once.len() <= text.len() * 3 + 10);
        }
    }
}
