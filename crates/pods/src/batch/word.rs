//! Words of a shell script that stay what they are.
//!
//! A word is made of literal text and of the few variables that the script itself sets. Literal
//! text is put into single quotes, inside of which a shell reads nothing at all.

use std::fmt::{self, Write as _};

/// One word of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Variable(&'static str),
}

impl Word {
    /// Literal text.
    pub fn text(text: impl Into<String>) -> Self {
        Self(vec![Piece::Text(text.into())])
    }

    /// The value of one of the script's own variables.
    pub fn variable(name: &'static str) -> Self {
        Self(vec![Piece::Variable(name)])
    }

    /// This word with literal text after it.
    #[must_use]
    pub fn then(mut self, text: impl Into<String>) -> Self {
        let text = text.into();
        match self.0.last_mut() {
            Some(Piece::Text(last)) => last.push_str(&text),
            _ => self.0.push(Piece::Text(text)),
        }
        self
    }

    /// This word with another one after it, as one word.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        other.0.into_iter().fold(self, |mut word, piece| match piece {
            Piece::Text(text) => word.then(text),
            variable @ Piece::Variable(_) => {
                word.0.push(variable);
                word
            }
        })
    }
}

impl From<&str> for Word {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for Word {
    fn from(text: String) -> Self {
        Self::text(text)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => f.write_str(&quote(text))?,
                Piece::Variable(name) => write!(f, "\"${name}\"")?,
            }
        }
        Ok(())
    }
}

/// Literal text for a shell. The text has no NUL: no argument can.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Any bytes as an argument of `printf %b`, itself quoted.
pub fn quote_bytes(bytes: &[u8]) -> String {
    let mut escaped = String::with_capacity(bytes.len() * 2);
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b" ./_-:,=\n".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "\\0{byte:03o}");
        }
    }
    quote(&escaped)
}

/// Words of a command, with blanks between.
pub fn line(words: &[Word]) -> String {
    words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// A name that a shell can export.
pub fn is_identifier(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    /// What a real shell makes of a line: each argument, ended by a NUL.
    fn arguments(line: &str) -> Vec<u8> {
        let script = format!("T_X='va lue'; printf '%s\\0' {line}");
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_sees_exactly_the_text(words in proptest::collection::vec("[^\\x00]{0,40}", 1..6)) {
            let line = line(&words.iter().map(|word| Word::text(word.clone())).collect::<Vec<_>>());
            let wanted: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), &[0]].concat()).collect();
            prop_assert_eq!(arguments(&line), wanted);
        }

        #[test]
        fn bytes_survive_printf(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let script = format!("printf %b {}", quote_bytes(&bytes));
            let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
            prop_assert_eq!(output.stdout, bytes);
        }
    }

    #[test]
    fn variables_are_expanded_once() {
        let word = Word::variable("T_X").then("/$T_X `id`");
        assert_eq!(arguments(&word.to_string()), b"va lue/$T_X `id`\0");
    }
}
