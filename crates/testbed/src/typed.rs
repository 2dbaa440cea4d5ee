//! Commands as a person would type them, from the very words that are run.

use std::borrow::Cow;

/// A line for a shell: variables, then words.
pub(crate) fn line<'a>(
    variables: impl IntoIterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
    words: impl IntoIterator<Item = Cow<'a, str>>,
) -> String {
    let variables = variables.into_iter().map(|(name, value)| format!("{name}={}", quoted(&value)));
    let words = words.into_iter().map(|word| quoted(&word).into_owned());
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

/// In quotes where a shell would read it otherwise.
fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''")).into()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_back_the_very_words() {
        let words =
            ["plain", "", "two words", "it's", "a=[{b: 'c'}]", "$HOME `id` \"x\" \\ *", "--set", "k=v;w"];
        let said = line([("NAME".into(), "of two $words".into())], [Cow::from("env")]);
        assert_eq!(said, "NAME='of two $words' env");
        let script = line([], ["printf".into(), r"%s\0".into()].into_iter().chain(words.map(Cow::from)));
        let heard = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        let heard = String::from_utf8(heard).unwrap();
        assert_eq!(heard.trim_end_matches('\0').split('\0').collect::<Vec<_>>(), words);
    }
}
