//! How lists of the configuration name those who ask: by a namespace, whichever remote it is on, or
//! by `remote/namespace` where two clusters have one of the same name.

/// The namespace of this remote that an entry means, if it means one.
pub(crate) fn on<'a>(entry: &'a str, remote: &str) -> Option<&'a str> {
    match entry.split_once('/') {
        None => Some(entry),
        Some((named, namespace)) => (named == remote).then_some(namespace),
    }
}

/// Whether an entry means this namespace of this remote.
pub(crate) fn means(entry: &str, remote: &str, namespace: &str) -> bool {
    on(entry, remote) == Some(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_meant_everywhere_or_on_one_remote() {
        assert!(means("team-a", "east", "team-a") && means("team-a", "west", "team-a"));
        assert!(means("east/team-a", "east", "team-a"));
        for (remote, namespace) in
            [("west", "team-a"), ("east", "team-b"), ("east", "east/team-a"), ("", "team-a")]
        {
            assert!(!means("east/team-a", remote, namespace), "{remote} {namespace}");
        }
        assert_eq!((on("east/team-a", "east"), on("east/team-a", "west")), (Some("team-a"), None));
    }
}
