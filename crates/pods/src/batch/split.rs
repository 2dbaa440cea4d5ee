//! Text of an annotation as words, the way a shell would split it, without anything else a shell
//! does: no variable, no command, no pattern is ever looked at.

/// The words of a text: blanks separate, quotes hold together, a backslash keeps the next
/// character. `None` if a quote or a backslash is left open.
pub fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\'' | '"' => {
                let held = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        end if end == c => break,
                        '\\' if c == '"' => match rest.next()? {
                            special @ ('"' | '\\' | '$' | '`') => held.push(special),
                            other => held.extend(['\\', other]),
                        },
                        inner => held.push(inner),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(rest.next()?),
            blank if blank.is_ascii_whitespace() => words.extend(word.take()),
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn open_ends_are_no_words() {
        for text in ["'a", "\"a", "a\\", "a 'b' \"c"] {
            assert_eq!(words(text), None, "{text}");
        }
        assert_eq!(words(" \t\n"), Some(vec![]));
        assert_eq!(words("a '' \"\""), Some(vec!["a".into(), String::new(), String::new()]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Beside a real shell, on everything that it does not do more with.
        #[test]
        fn a_shell_splits_alike(text in r#"[a-z0-9=:,./'"\\ -]{0,30}"#) {
            let script = format!("set -f; printf '%s\\0' x {text}");
            let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
            match words(&text) {
                None => {}
                Some(words) => {
                    let wanted: Vec<u8> = std::iter::once("x".to_owned()).chain(words)
                        .flat_map(|word| [word.as_bytes(), &[0]].concat()).collect();
                    prop_assert_eq!(output.stdout, wanted);
                }
            }
        }

        #[test]
        fn what_is_quoted_is_one_word(word in "[^\\x00]{0,40}") {
            prop_assert_eq!(words(&super::super::word::quote(&word)), Some(vec![word]));
        }
    }
}
