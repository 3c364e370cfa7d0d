//! Annotations that have k8sd issue the certificates of a node again, and k8sd's messages for that
//! (`docs/facts/canonical.md#certificates`).

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// When the certificates of a Machine expire, in RFC 3339: Cluster API's own annotation.
pub const CERTIFICATES_EXPIRY: &str = "machine.cluster.x-k8s.io/certificates-expiry";

const MINUTE: i64 = 60;
const DAY: i64 = 24 * 60 * MINUTE;
/// The shortest lifetime that Kubernetes accepts for a certificate signing request.
const SHORTEST: i64 = 10 * MINUTE;
/// The longest one, which is a signed number of 32 bits there.
const LONGEST: i64 = i32::MAX as i64;

/// The annotations of one prefix on a Machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateKeys {
    /// How long the new certificates are valid: a [`Lifetime`]. Removing it cancels the refresh.
    pub refresh: &'static str,
    /// How far the refresh is: an [`UpgradeStatus`](super::UpgradeStatus).
    pub status: &'static str,
    /// The last NodeUpdate that has ended and is shown: Refit's own note.
    pub shown: &'static str,
    /// The last failure that was announced: Refit's own note.
    pub noted: &'static str,
}

/// How long certificates are valid, in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(i64);

/// Why a text is not a lifetime.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLifetime {
    /// It is no number with a unit.
    #[error("invalid lifetime {0:?}: expected one such as 1y, 6mo, 90d or 720h")]
    Shape(String),
    /// It is too short or too long.
    #[error("lifetime {0:?} is out of range: expected 10m to 68y")]
    Range(String),
}

impl Lifetime {
    /// In seconds.
    pub fn seconds(self) -> i64 {
        self.0
    }
}

impl std::str::FromStr for Lifetime {
    type Err = BadLifetime;

    /// Parses years of 365 days (`1y`), months of 30 days (`6mo`), days (`90d`), or a duration as Go writes it (`720h`).
    ///
    /// ```
    /// use refit_kinds::canonical::Lifetime;
    /// assert_eq!("1y".parse::<Lifetime>()?.seconds(), 31_536_000);
    /// assert!("soon".parse::<Lifetime>().is_err());
    /// # Ok::<(), refit_kinds::canonical::BadLifetime>(())
    /// ```
    fn from_str(text: &str) -> Result<Self, BadLifetime> {
        let shape = || BadLifetime::Shape(text.to_owned());
        let range = || BadLifetime::Range(text.to_owned());
        let seconds = if let Some((count, days)) = whole_days(text) {
            // A number with too many digits is a number.
            let count: Option<i64> = count.parse().ok();
            count.and_then(|count| count.checked_mul(days * DAY)).ok_or_else(range)?
        } else {
            // `M` would be read as minutes.
            let is_go = !text.bytes().any(|byte| byte.is_ascii_uppercase());
            let parsed: Option<SignedDuration> = text.parse().ok().filter(|_| is_go);
            parsed.ok_or_else(shape)?.as_secs()
        };
        if !(SHORTEST..=LONGEST).contains(&seconds) {
            return Err(range());
        }
        Ok(Self(seconds))
    }
}

/// The digits of a number of years, months or days, and the days of one.
fn whole_days(text: &str) -> Option<(&str, i64)> {
    let units = [("mo", 30), ("y", 365), ("Y", 365), ("d", 1), ("D", 1)];
    units.into_iter().find_map(|(unit, days)| {
        let count = text.strip_suffix(unit)?;
        let is_number = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then_some((count, days))
    })
}

/// A request without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

/// When the certificates of a node expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ExpiryAnswer {
    /// The time of the first one.
    pub expiry_date: Timestamp,
}

/// What identifies a refresh of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct PlanAnswer {
    /// A random number. Its key is a slip of the real API.
    #[serde(rename = "seconds")]
    pub seed: i64,
}

/// Has a node issue its certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunRequest {
    /// The seed of the plan.
    pub seed: i64,
    /// How long they are valid.
    pub expiration_seconds: i64,
    /// More names of the API server, on a control plane node.
    #[serde(rename = "extra-sans")]
    pub extra_sans: Vec<String>,
}

/// What a node has issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunAnswer {
    /// Unix time of the expiry; from workers with an older k8sd, the lifetime.
    pub expiration_seconds: i64,
}

impl RunAnswer {
    /// When certificates that were asked for this lifetime expire. A lifetime counts from `now`.
    ///
    /// ```
    /// use refit_kinds::canonical::RunAnswer;
    /// let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse()?;
    /// for expiration_seconds in [now.as_second() + 3600, 3600] {
    ///     let expires = RunAnswer { expiration_seconds }.expires(3600, now);
    ///     assert_eq!(expires.to_string(), "2026-01-01T01:00:00Z");
    /// }
    /// # Ok::<(), jiff::Error>(())
    /// ```
    pub fn expires(self, lifetime: i64, now: Timestamp) -> Timestamp {
        let seconds = self.expiration_seconds;
        let at = if seconds > now.as_second() && seconds != lifetime {
            seconds
        } else {
            now.as_second().saturating_add(seconds)
        };
        Timestamp::from_second(at).unwrap_or(Timestamp::MAX)
    }
}

/// Has a control plane node approve the requests of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ApproveRequest {
    /// The seed of the plan.
    pub seed: i64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<i64, BadLifetime> {
        text.parse().map(Lifetime::seconds)
    }

    #[test]
    fn a_lifetime_has_years_months_days_or_a_go_duration() {
        for (text, seconds) in [
            ("1y", 365 * DAY),
            ("2Y", 730 * DAY),
            ("6mo", 180 * DAY),
            ("90d", 90 * DAY),
            ("90D", 90 * DAY),
            ("720h", 30 * DAY),
            ("1h30m", 90 * MINUTE),
            ("600s", 600),
            ("10m", 600),
        ] {
            assert_eq!(parsed(text), Ok(seconds), "{text}");
        }
        for text in ["", "y", "1", "soon", "1 y", "1.5y", "-1y", "30M", "1mo2d", "1w", "PT1H"] {
            assert_eq!(parsed(text), Err(BadLifetime::Shape(text.into())), "{text}");
        }
        for text in ["9m", "0d", "-1h", "69y", "99999999999999999999y", "9000000000000000000d"] {
            assert_eq!(parsed(text), Err(BadLifetime::Range(text.into())), "{text}");
        }
    }

    #[test]
    fn messages_have_the_form_of_k8sd() {
        let run = RunRequest { seed: 7, expiration_seconds: 60, extra_sans: Vec::new() };
        let json = serde_json::to_string(&run).unwrap();
        assert_eq!(json, r#"{"seed":7,"expiration-seconds":60,"extra-sans":[]}"#);
        assert_eq!(serde_json::to_string(&Nothing {}).unwrap(), "{}");
        let plan = r#"{"seconds":7,"certificate-signing-requests":null}"#;
        assert_eq!(serde_json::from_str::<PlanAnswer>(plan).unwrap().seed, 7);
    }

    proptest! {
        #[test]
        fn any_text_is_a_lifetime_in_range_or_an_error_that_names_it(text in "[0-9a-zA-Z. -]{0,12}") {
            let named = format!("{text:?}");
            match text.parse::<Lifetime>() {
                Ok(Lifetime(seconds)) => prop_assert!((SHORTEST..=LONGEST).contains(&seconds)),
                Err(why) => prop_assert!(why.to_string().contains(&named)),
            }
        }

        #[test]
        fn an_expiry_is_in_the_future(
            now in 1_700_000_000_i64..4_000_000_000,
            seconds in 1..=LONGEST,
            is_unix in any::<bool>(),
        ) {
            let expiration_seconds = if is_unix { now + seconds } else { seconds };
            let now = Timestamp::from_second(now).unwrap();
            let expires = RunAnswer { expiration_seconds }.expires(seconds, now);
            prop_assert_eq!(expires.as_second(), now.as_second() + seconds);
        }
    }
}
