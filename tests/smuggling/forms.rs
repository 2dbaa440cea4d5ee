//! The forms: each has a request in its body that nobody judged.

/// Whom they are for.
pub(super) struct Form<'a> {
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    pub(super) bearer: &'a str,
    /// The request in the body, which must not be met by any server.
    pub(super) inner: &'a str,
}

fn head(form: &Form<'_>, method: &str) -> String {
    let Form { host, path, bearer, .. } = form;
    format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: {bearer}\r\n")
}

/// A request as it should be.
pub(super) fn good(form: &Form<'_>) -> String {
    format!("{}content-length: 5\r\n\r\nhello", head(form, "POST"))
}

pub(super) fn all(form: &Form<'_>) -> Vec<(String, String)> {
    let (post, inner) = (head(form, "POST"), form.inner);
    let mut forms: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, bytes: String| forms.push((name.to_owned(), bytes));

    // A body with two ends: one says that the inner request is in it, the other that it comes after it.
    let chunked = format!("0\r\n\r\n{inner}");
    let inside = format!("{:x}\r\n{inner}\r\n0\r\n\r\n", inner.len());
    let length = chunked.len();
    for (name, coding) in [
        ("both", "transfer-encoding: chunked"),
        ("both, in capitals", "TRANSFER-ENCODING: CHUNKED"),
        ("both, a space before the colon", "transfer-encoding : chunked"),
        ("both, a tab before the colon", "transfer-encoding\t: chunked"),
        ("both, a tab before the value", "transfer-encoding:\tchunked"),
        ("both, a vertical tab", "transfer-encoding: \u{b}chunked"),
        ("both, quoted", "transfer-encoding: \"chunked\""),
        ("both, another coding", "transfer-encoding: xchunked"),
        ("both, identity", "transfer-encoding: identity"),
        ("both, chunked is not last", "transfer-encoding: chunked, identity"),
        ("both, chunked twice", "transfer-encoding: chunked, chunked"),
        ("both, two lines", "transfer-encoding: chunked\r\ntransfer-encoding: identity"),
        ("both, two lines, the first strange", "transfer-encoding: x\r\ntransfer-encoding: chunked"),
        ("both, empty", "transfer-encoding: "),
        ("both, a comma first", "transfer-encoding: , chunked"),
        ("both, folded", "transfer-encoding:\r\n chunked"),
        ("both, folded before", "x: y\r\n transfer-encoding: chunked"),
        ("both, after a bare line feed", "x: y\ntransfer-encoding: chunked"),
        ("both, after a bare carriage return", "x: y\rtransfer-encoding: chunked"),
        ("both, with a NUL", "transfer-encoding: chunked\0"),
        ("both, with a parameter", "transfer-encoding: chunked;q=1"),
        ("both, another name", "transfer_encoding: chunked"),
        ("both, named by connection", "connection: transfer-encoding\r\ntransfer-encoding: chunked"),
    ] {
        add(name, format!("{post}content-length: {length}\r\n{coding}\r\n\r\n{chunked}"));
        add(
            &format!("{name}; the length last"),
            format!("{post}{coding}\r\ncontent-length: 5\r\n\r\n{inside}"),
        );
    }
    // Lengths that are read in two ways.
    let whole = inner.len();
    for (name, lengths) in [
        ("two lengths", format!("content-length: 0\r\ncontent-length: {whole}")),
        ("two lengths, the longer first", format!("content-length: {whole}\r\ncontent-length: 0")),
        ("a list of lengths", format!("content-length: 0, {whole}")),
        ("a plus", format!("content-length: +{whole}")),
        ("a minus", "content-length: -1".into()),
        ("hexadecimal", "content-length: 0x0".into()),
        ("a space inside", "content-length: 0 0".into()),
        ("too large", "content-length: 18446744073709551616".into()),
        ("nothing", "content-length: ".into()),
        ("a space before the colon", format!("content-length : {whole}")),
        ("folded", format!("content-length:\r\n {whole}")),
        ("named by connection", format!("connection: content-length\r\ncontent-length: {whole}")),
        ("with a NUL", format!("content-length: {whole}\0")),
    ] {
        add(name, format!("{post}{lengths}\r\n\r\n{inner}"));
    }
    // Chunks that are read in two ways.
    let coded = format!("{post}transfer-encoding: chunked\r\n\r\n");
    for (name, chunks) in [
        ("a chunk's size that overflows", format!("10000000000000000\r\n{inner}")),
        ("a chunk's size with a sign", format!("-1\r\n{inner}")),
        ("a chunk's size with 0x", format!("0x0\r\n\r\n{inner}")),
        ("a chunk that ends in a line feed", format!("0\n\n{inner}")),
        ("a chunk that is longer than it says", format!("1\r\nxy\r\n0\r\n\r\n{inner}")),
        ("an extension with a line feed", format!("0;a=b\nc\r\n\r\n{inner}")),
        ("a trailer that is a length", format!("0\r\ncontent-length: {whole}\r\n\r\n{inner}")),
        ("a trailer that is ours", format!("0\r\ntarbet-caller: mallory\r\n\r\n{inner}")),
    ] {
        add(name, format!("{coded}{chunks}"));
    }
    // Heads that are read in two ways, and words of ours from outside.
    let get = head(form, "GET");
    for (name, line) in [
        ("who calls, said by the caller", "tarbet-caller: mallory"),
        ("the same, named by connection", "connection: tarbet-caller\r\ntarbet-caller: mallory"),
        ("the same twice", "tarbet-caller: mallory\r\nTarbet-Caller: mallory"),
        ("the same with a space", "tarbet-caller : mallory"),
        ("the same, folded", "x: y\r\n tarbet-caller: mallory"),
        ("the request's id, named by connection", "connection: tarbet-request-id"),
        ("the credential, named by connection", "connection: authorization"),
        ("a proof of nobody", "tarbet-caller-token: mallory"),
        ("a head in a line feed", "x: y\nz: w"),
        ("a name with a space", "x y: w"),
        ("a line without a name", ": w"),
        ("a line without a colon", "w"),
        ("a body where none is expected", &format!("content-length: {whole}")),
    ] {
        let after = if line.starts_with("content-length") { inner } else { "" };
        add(name, format!("{get}{line}\r\n\r\n{after}"));
    }
    let Form { host, path, bearer, .. } = form;
    for (name, first) in [
        ("a path with a line feed", format!("GET {path}\nGET /smuggled HTTP/1.1")),
        ("a path with a space", format!("GET {path} /smuggled HTTP/1.1")),
        ("two hosts in the path", format!("GET http://{host}/smuggled http://{host}{path} HTTP/1.1")),
        ("an old version", format!("GET {path} HTTP/0.9")),
        ("a strange version", format!("GET {path} HTTP/1.1x")),
        ("a NUL in the path", format!("GET {path}\0/smuggled HTTP/1.1")),
    ] {
        add(name, format!("{first}\r\nhost: {host}\r\nauthorization: {bearer}\r\n\r\n"));
    }
    forms
}
