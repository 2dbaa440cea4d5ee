//! Kubernetes' quantities: `500m`, `1.5`, `64Mi`, `1e3`.

/// A quantity in thousandths, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

impl Quantity {
    /// Reads one; `None` if it is not a quantity or negative.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let scale: i128 = match suffix {
            // Finer than thousandths: rounded up below, so that a little never becomes nothing.
            "n" | "u" | "m" => 1,
            "" => 1_000,
            "k" => 1_000_000,
            "M" => 1_000_000_000,
            "G" => 1_000_000_000_000,
            "T" => 1_000_000_000_000_000,
            "P" => 1_000_000_000_000_000_000,
            "E" => 1_000_000_000_000_000_000_000,
            "Ki" => 1_000 << 10,
            "Mi" => 1_000 << 20,
            "Gi" => 1_000 << 30,
            "Ti" => 1_000 << 40,
            "Pi" => 1_000_i128 << 50,
            "Ei" => 1_000_i128 << 60,
            exponent => {
                let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
                return Self::decimal(number, 1_000, power);
            }
        };
        let power = match suffix {
            "n" => -6,
            "u" => -3,
            _ => 0,
        };
        Self::decimal(number, scale, power)
    }

    fn decimal(number: &str, scale: i128, power: i32) -> Option<Self> {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0
            || whole.len() + fraction.len() > 30
            || !(-30..=18).contains(&power)
        {
            return None;
        }
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let mut value = digits.checked_mul(scale)?;
        let shift = power - i32::try_from(fraction.len()).ok()?;
        let ten = 10_i128.checked_pow(shift.unsigned_abs())?;
        value = if shift >= 0 { value.checked_mul(ten)? } else { value.checked_add(ten - 1)? / ten };
        Some(Self(value))
    }

    /// In thousandths.
    pub fn milli(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// In whole units, rounded up.
    pub fn units(self) -> i64 {
        i64::try_from((self.0 + 999) / 1_000).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kubernetes_writes() {
        let milli = |text| Quantity::parse(text).map(Quantity::milli);
        let units = |text| Quantity::parse(text).map(Quantity::units);
        assert_eq!(milli("500m"), Some(500));
        assert_eq!(milli("1.5"), Some(1500));
        assert_eq!(milli("0.0001"), Some(1));
        assert_eq!(milli("100n"), Some(1));
        assert_eq!(units("64Mi"), Some(67_108_864));
        assert_eq!(units("1G"), Some(1_000_000_000));
        assert_eq!(units("1e3"), Some(1_000));
        assert_eq!(units("1E2"), Some(100));
        assert_eq!(units("1500m"), Some(2));
        assert_eq!(units("0"), Some(0));
        for bad in ["", "x", "-1", "1Zi", "1e", "1.2.3", "1e99", "."] {
            assert_eq!(Quantity::parse(bad), None, "{bad}");
        }
    }
}
