//! Parameters reach the pipeline as the same bytes, or not at all.
//!
//! Tekton replaces `$(…)` wherever it stands, also inside a value that was itself put in place of
//! one, and the kubelet expands `$(VAR)` and turns `$$` into `$` in commands and environment.
//! Neither can be told to leave a value alone, so a value that they would change is refused.

use std::collections::BTreeMap;

/// The longest value: Linux takes no longer argument or variable than 128 KiB.
const LONGEST_VALUE: usize = 64 * 1024;
/// All names and values together: they are copied into the run, its tasks and their pods, and none
/// of these objects may grow beyond 1.5 MB.
const LONGEST_ALL: usize = 256 * 1024;
/// More than any pipeline takes.
const MOST: usize = 500;

/// Why the value cannot be passed on unchanged, if so.
pub fn refusal(value: &str) -> Option<&'static str> {
    if value.len() > LONGEST_VALUE {
        return Some("is longer than 64 KiB");
    }
    if value.contains('\0') {
        return Some("contains a NUL character, which no process can be given");
    }
    if value.contains("$(") {
        return Some("contains \"$(\", which Tekton and the kubelet would replace");
    }
    if value.contains("$$") {
        return Some("contains \"$$\", which the kubelet would shorten");
    }
    // Joined with what the pipeline puts behind it, it could become one of the two above.
    if value.ends_with('$') {
        return Some("ends in \"$\", which what follows could turn into a reference");
    }
    None
}

/// Whether Tekton takes it as the name of a parameter.
pub fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    first && name.len() <= 253 && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Checks all parameters; the message names the first that is refused.
pub fn check(params: &BTreeMap<String, String>) -> Result<(), String> {
    if params.len() > MOST {
        return Err(format!("there are {} parameters, more than the {MOST} that are accepted", params.len()));
    }
    for (name, value) in params {
        if !is_name(name) {
            return Err(format!("the parameter name {} is not valid", quoted(name)));
        }
        if let Some(why) = refusal(value) {
            return Err(format!("the value of the parameter {} {why}", quoted(name)));
        }
    }
    let total: usize = params.iter().map(|(name, value)| name.len() + value.len()).sum();
    if total > LONGEST_ALL {
        return Err(format!(
            "the parameters are {total} bytes long, more than the {LONGEST_ALL} that are accepted"
        ));
    }
    Ok(())
}

/// A word of a stranger in a message: short, on one line, in quotes.
pub fn quoted(text: &str) -> String {
    const LONGEST: usize = 80;
    let clean: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    format!("\"{clean}{more}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the kubelet makes of an argument when no variable is set.
    fn expand(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            let after = &rest[at + 1..];
            if let Some(after) = after.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some(end) = after.strip_prefix('(').and_then(|name| name.find(')')) {
                out.push_str("EXPANDED");
                rest = &after[end + 2..];
            } else {
                out.push('$');
                rest = after;
            }
        }
        out + rest
    }

    proptest! {
        #[test]
        fn what_passes_is_changed_by_nobody(value in "[a$()\\{}\n'\"`]{0,24}", before in "[a$(]{0,3}", after in "[a$()]{0,6}") {
            if refusal(&value).is_none() {
                prop_assert_eq!(expand(&value), value.clone());
                // Also not where the pipeline sets it between texts of its own that are complete.
                if !before.ends_with('$') && expand(&before) == before && !before.contains("$(") {
                    let joined = format!("{before}{value}{after}");
                    let start = format!("{before}{value}");
                    prop_assert!(expand(&joined).starts_with(&start));
                }
            }
        }

        #[test]
        fn quoting_keeps_messages_short_and_on_one_line(text in any::<String>()) {
            let quoted = quoted(&text);
            prop_assert!(!quoted.contains('\n') && quoted.len() < 1000);
        }
    }

    #[test]
    fn names_are_those_tekton_takes() {
        for good in ["foo", "_x", "a.b-c_D9"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "9a", "-a", "a b", "a$(b)", "ä", "a\n", &"x".repeat(254)] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn too_much_is_refused() {
        let one = |value: String| BTreeMap::from([("a".to_owned(), value)]);
        assert!(check(&one("x".repeat(LONGEST_VALUE))).is_ok());
        assert!(check(&one("x".repeat(LONGEST_VALUE + 1))).is_err());
        let many: BTreeMap<_, _> = (0..5).map(|n| (format!("p{n}"), "x".repeat(60_000))).collect();
        assert!(check(&many).unwrap_err().contains("300010 bytes"));
        let many: BTreeMap<_, _> = (0..=MOST).map(|n| (format!("p{n}"), String::new())).collect();
        assert!(check(&many).is_err());
    }
}
