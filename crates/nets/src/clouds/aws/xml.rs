//! The XML of EC2's answers as JSON: elements are fields, and elements of `item`s are lists.

use serde_json::{Map, Value};

/// Reads an answer; nothing if it is no XML.
pub(super) fn read(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    loop {
        match reader.next()? {
            Token::Open(_) => return reader.element(0),
            Token::Text(_) => {}
            Token::Close | Token::Empty(_) => return None,
        }
    }
}

/// Deeper answers are none of EC2's.
const DEEPEST: usize = 40;

enum Token<'a> {
    Open(&'a str),
    Empty(&'a str),
    Close,
    Text(&'a str),
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let Some(inner) = self.rest.strip_prefix('<') else {
                let end = self.rest.find('<')?;
                let (text, rest) = self.rest.split_at(end);
                self.rest = rest;
                return Some(Token::Text(text));
            };
            let (tag, rest) = inner.split_once('>')?;
            self.rest = rest;
            if tag.starts_with('?') || tag.starts_with('!') {
                continue;
            }
            let name = |tag: &'a str| tag.split_whitespace().next().unwrap_or_default();
            return Some(match (tag.strip_prefix('/'), tag.strip_suffix('/')) {
                (Some(_), _) => Token::Close,
                (None, Some(tag)) => Token::Empty(name(tag)),
                (None, None) => Token::Open(name(tag)),
            });
        }
    }

    /// What is inside of an element that was just opened.
    fn element(&mut self, depth: usize) -> Option<Value> {
        let mut text = String::new();
        let mut fields: Vec<(&str, Value)> = Vec::new();
        loop {
            match self.next()? {
                Token::Text(part) => text.push_str(part),
                Token::Empty(name) => fields.push((name, Value::Null)),
                Token::Open(name) if depth < DEEPEST => fields.push((name, self.element(depth + 1)?)),
                Token::Open(_) => return None,
                Token::Close => break,
            }
        }
        if fields.is_empty() {
            return Some(Value::String(plain(text.trim())));
        }
        if fields.iter().all(|(name, _)| *name == "item") {
            return Some(Value::Array(fields.into_iter().map(|(_, value)| value).collect()));
        }
        Some(Value::Object(
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>(),
        ))
    }
}

fn plain(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn lists_and_fields_are_told_apart() {
        let text = "<?xml version=\"1.0\"?>\n<R xmlns=\"x\"><vpcSet><item><vpcId>v</vpcId><tagSet/></item><item><a>1 &amp; 2</a></item></vpcSet><n/></R>";
        assert_eq!(
            read(text).unwrap(),
            json!({ "vpcSet": [{ "vpcId": "v", "tagSet": null }, { "a": "1 & 2" }], "n": null })
        );
    }

    proptest! {
        #[test]
        fn nothing_breaks_it(text in "[<>/ab &;?!]{0,60}") {
            let _ = read(&text);
        }
    }
}
