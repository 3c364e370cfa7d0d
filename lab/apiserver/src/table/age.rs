//! Ages in the format of `kubectl get`.

use jiff::Timestamp;
use serde_json::Value;

/// The text for an unknown timestamp.
pub(super) const UNKNOWN: &str = "<unknown>";

/// The age of a timestamp in an object.
pub(super) fn age(time: &Value, now: Timestamp) -> String {
    since(time, now).unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The age of a timestamp, if it is valid.
pub(super) fn since(time: &Value, now: Timestamp) -> Option<String> {
    let time: Timestamp = time.as_str()?.parse().ok()?;
    Some(human(now.duration_since(time).as_secs()))
}

/// Formats seconds with at most two units: precise to the second below ten minutes, coarser above.
pub(super) fn human(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{big}{big_unit}")
        } else {
            format!("{big}{big_unit}{small}{small_unit}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds / DAY, "d", seconds % DAY / HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(seconds / YEAR, "y", seconds % YEAR / DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_244_800, "2y2d"),
            (252_288_000, "8y"),
        ];
        for (seconds, wanted) in cases {
            assert_eq!(human(seconds), wanted, "{seconds}");
        }
    }

    #[test]
    fn an_invalid_timestamp_has_no_age() {
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(age(&Value::Null, now), UNKNOWN);
        assert_eq!(age(&Value::from("soon"), now), UNKNOWN);
        assert_eq!(age(&Value::from("2026-01-01T00:00:00Z"), now), "60s");
    }
}
