//! Kubernetes' `$(NAME)` in commands, arguments and variables.

/// Replaces `$(NAME)` by what `lookup` knows; `$$` stands for one `$`, unknown names stay.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            if let Some(value) = lookup(name) {
                out.push_str(value);
            } else {
                out.push_str("$(");
                out.push_str(name);
                out.push(')');
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn follows_kubernetes() {
        let look = |name: &str| match name {
            "A" => Some("a"),
            "B" => Some("$(A)"),
            "EMPTY" => Some(""),
            _ => None,
        };
        for (text, want) in [
            ("$(A)", "a"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$(B)", "$(A)"),
            ("$(NO)-$(A)", "$(NO)-a"),
            ("x$(EMPTY)y", "xy"),
            ("$(A", "$(A"),
            ("$A $", "$A $"),
            ("$$$$", "$$"),
        ] {
            assert_eq!(expand(text, look), want, "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollars_is_left_alone(text in "[^$]{0,60}") {
            prop_assert_eq!(expand(&text, |_| Some("x")), text);
        }

        #[test]
        fn never_panics(text in "[$()A-C ä]{0,40}") {
            expand(&text, |name| (name == "A").then_some("$"));
        }
    }
}
