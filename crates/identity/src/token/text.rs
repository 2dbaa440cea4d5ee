//! How a token looks: a prefix that says what it is, 256 bits and a checksum in lower-case base32.
//!
//! The checksum is a CRC-24, which finds *every* error confined to 24 neighbouring bits: any one
//! character mistyped (5 bits), any two neighbours swapped (10), any four in a row garbled. 256 + 24
//! bits fill 56 characters exactly, so each token has one spelling and no stray bits.

use std::fmt;

use zeroize::Zeroizing;

use super::{TokenHash, TokenKind, hash_opaque};
use crate::random::{self, NoEntropy};
use crate::secret::Secret;

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const SECRET_LEN: usize = 32;
const CHECKED_LEN: usize = SECRET_LEN + 3;
const BODY_LEN: usize = CHECKED_LEN * 8 / 5;

/// A well-formed token. That it is known and unused is for [`TokenRecord::redeem`](super::TokenRecord::redeem) to say.
#[derive(Clone)]
pub struct Token {
    kind: TokenKind,
    text: Secret,
}

/// Why a text is no token of ours. Found without asking anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAToken {
    /// It begins otherwise.
    #[error("this is not a tarbet token: those begin with tbj_, tba_ or tbu_")]
    Prefix,
    /// Cut off, or with something stuck to it.
    #[error("the token has the wrong length: 60 characters are expected; was it copied whole?")]
    Length,
    /// A character that tokens never have, or a checksum that does not fit.
    #[error("the token is misspelt: its checksum does not fit; copy it again")]
    Misspelt,
}

impl Token {
    /// A fresh token.
    pub fn generate(kind: TokenKind) -> Result<Self, NoEntropy> {
        Ok(Self::from_random(kind, &Zeroizing::new(random::bytes()?)))
    }

    /// The token that these 32 random bytes make.
    pub fn from_random(kind: TokenKind, random: &[u8; SECRET_LEN]) -> Self {
        let mut checked = Zeroizing::new([0; CHECKED_LEN]);
        checked[..SECRET_LEN].copy_from_slice(random);
        checked[SECRET_LEN..].copy_from_slice(&checksum(kind, random));
        let mut text = String::with_capacity(kind.prefix().len() + BODY_LEN);
        text.push_str(kind.prefix());
        for group in checked.chunks_exact(5) {
            let bits = group.iter().fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
            text.extend((0..8).rev().map(|n| char::from(ALPHABET[(bits >> (5 * n) & 31) as usize])));
        }
        Self { kind, text: Secret::new(text) }
    }

    /// Reads a token as typed or pasted. Exactly the printed form: no spaces, no capitals.
    pub fn parse(text: &str) -> Result<Self, NotAToken> {
        let (kind, body) = TokenKind::ALL
            .into_iter()
            .find_map(|kind| text.strip_prefix(kind.prefix()).map(|body| (kind, body)))
            .ok_or(NotAToken::Prefix)?;
        if body.len() != BODY_LEN {
            return Err(NotAToken::Length);
        }
        let mut checked = Zeroizing::new([0u8; CHECKED_LEN]);
        for (group, bytes) in body.as_bytes().chunks_exact(8).zip(checked.chunks_exact_mut(5)) {
            let bits = group.iter().try_fold(0u64, |bits, letter| Some(bits << 5 | value_of(*letter)?));
            let bits = bits.ok_or(NotAToken::Misspelt)?;
            bytes.copy_from_slice(&bits.to_be_bytes()[3..]);
        }
        let (random, check) = checked.split_at(SECRET_LEN);
        if check != checksum(kind, random) {
            return Err(NotAToken::Misspelt);
        }
        Ok(Self { kind, text: Secret::from(text) })
    }

    /// What it is good for.
    pub fn kind(&self) -> TokenKind {
        self.kind
    }

    /// The token itself, to be shown once and never again.
    pub fn text(&self) -> &Secret {
        &self.text
    }

    /// What the store keeps instead.
    pub fn hash(&self) -> TokenHash {
        hash_opaque(self.text.expose())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:?} {}, redacted)", self.kind, self.hash().id())
    }
}

fn value_of(letter: u8) -> Option<u64> {
    match letter {
        b'a'..=b'z' => Some(u64::from(letter - b'a')),
        b'2'..=b'7' => Some(u64::from(letter - b'2') + 26),
        _ => None,
    }
}

/// Over the prefix as well, so that no kind of token turns into another by a slip.
fn checksum(kind: TokenKind, secret: &[u8]) -> [u8; 3] {
    let [_, check @ ..] = crc24(kind.prefix().as_bytes().iter().chain(secret)).to_be_bytes();
    check
}

/// CRC-24 with the OpenPGP polynomial.
fn crc24<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u32 {
    bytes.into_iter().fold(0x00b7_04ce, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 16, |crc, _| {
            let shifted = crc << 1;
            if shifted & 0x0100_0000 == 0 { shifted } else { shifted ^ 0x0186_4cfb }
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_kind() -> impl Strategy<Value = TokenKind> {
        prop::sample::select(TokenKind::ALL.to_vec())
    }

    proptest! {
        #![proptest_config(crate::effort::cases())]

        #[test]
        fn printed_tokens_are_read(kind in any_kind(), random: [u8; 32]) {
            let token = Token::from_random(kind, &random);
            let text = token.text().expose();
            prop_assert_eq!(text.len(), 60);
            let read = Token::parse(text).unwrap();
            prop_assert_eq!(read.kind(), kind);
            prop_assert_eq!(read.hash(), token.hash());
        }

        #[test]
        fn any_changed_byte_is_found(kind in any_kind(), random: [u8; 32], at in 0usize..60, to: u8) {
            let token = Token::from_random(kind, &random);
            let mut bytes = token.text().expose().as_bytes().to_vec();
            prop_assume!(bytes[at] != to);
            bytes[at] = to;
            prop_assert!(Token::parse(&String::from_utf8_lossy(&bytes)).is_err());
        }

        #[test]
        fn swapped_neighbours_lost_and_doubled_letters_are_found(random: [u8; 32], at in 4usize..59) {
            let token = Token::from_random(TokenKind::Join, &random);
            let text = token.text().expose();
            let mut swapped = text.as_bytes().to_vec();
            swapped.swap(at, at + 1);
            if swapped != text.as_bytes() {
                prop_assert_eq!(Token::parse(std::str::from_utf8(&swapped).unwrap()).unwrap_err(), NotAToken::Misspelt);
            }
            let lost = format!("{}{}", &text[..at], &text[at + 1..]);
            prop_assert_eq!(Token::parse(&lost).unwrap_err(), NotAToken::Length);
            let doubled = format!("{}{}", &text[..=at], &text[at..]);
            prop_assert_eq!(Token::parse(&doubled).unwrap_err(), NotAToken::Length);
        }

        #[test]
        fn anything_may_be_typed(text in ".*", tail in "[a-z2-7 é]{50,60}") {
            let _ = Token::parse(&text);
            let _ = Token::parse(&format!("tbj_{tail}"));
        }
    }

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc24(b"123456789"), 0x0021_cf02);
    }

    #[test]
    fn kinds_do_not_turn_into_each_other() {
        let join = Token::from_random(TokenKind::Join, &[7; 32]);
        let forged = join.text().expose().replace("tbj_", "tba_");
        assert_eq!(Token::parse(&forged).unwrap_err(), NotAToken::Misspelt);
        assert_eq!(Token::parse("glagent-abc").unwrap_err(), NotAToken::Prefix);
    }
}
