//! Kubernetes' quantities: `100m`, `1.5Gi`, `2e3`.

/// A quantity in thousandths, rounded up; `None` if it is invalid, negative, or too large
/// (`docs/facts/kubernetes.md#scheduling`).
pub(super) fn thousandths(text: &str) -> Option<i64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (times, per) = scale(suffix)?;
    let per = per.checked_mul(10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)?;
    let scaled = digits.checked_mul(times)?.checked_mul(1000)?;
    let rounded_up = scaled.checked_add(per.checked_sub(1)?)?.checked_div(per)?;
    i64::try_from(rounded_up).ok()
}

/// What a suffix multiplies with, as a fraction.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    const SMALL: [&str; 3] = ["m", "u", "n"];
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let power = |all: &[&str], base: i128, first: u32| {
        let at = all.iter().position(|one| *one == suffix)?;
        base.checked_pow(u32::try_from(at).ok()?.checked_add(first)?)
    };
    if let Some(times) = power(&DECIMAL, 1000, 0).or_else(|| power(&BINARY, 1024, 0)) {
        return Some((times, 1));
    }
    if let Some(per) = power(&SMALL, 1000, 1) {
        return Some((1, per));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, wanted) in [
            ("0", 0),
            ("1", 1000),
            ("100m", 100),
            ("0.1", 100),
            (".5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("128974848", 128_974_848_000),
            ("129M", 129_000_000_000),
            ("129e6", 129_000_000_000),
            ("1E3", 1_000_000),
            ("2Ki", 2_048_000),
            ("1n", 1),
            ("1500u", 2),
            ("12e-1", 1200),
        ] {
            assert_eq!(thousandths(text), Some(wanted), "{text}");
        }
        for text in ["", ".", "m", "-1", "+1", "1 Gi", "1gi", "1e", "1.2.3", "9E", "1e99", "1e-99"]
        {
            assert_eq!(thousandths(text), None, "{text}");
        }
    }
}
