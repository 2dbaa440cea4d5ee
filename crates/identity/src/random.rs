//! Randomness from the operating system, as fixed-size values.

/// The operating system refused to give random bytes. Nothing can be minted until it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gave no random bytes")]
pub struct NoEntropy;

/// `N` fresh bytes.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], NoEntropy> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| NoEntropy)?;
    Ok(bytes)
}
