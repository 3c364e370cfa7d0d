//! The request to renew the certificates of a control plane machine: an annotation of its Machine.

use std::{fmt, str::FromStr};

use jiff::Timestamp;

use super::{Goal, GoalCertificates, RENEW_ALWAYS_DAYS};

/// What separates the time of a request from its number of days.
const WITHIN: &str = " within ";

/// The value of [`crate::keys::RENEW_CERTIFICATES`]: when it was asked for, which distinguishes requests, and the days within
/// which one of the certificates must expire; without them, all are renewed.
///
/// ```
/// use refit_kinds::refit::RenewalRequest;
/// let request: RenewalRequest = "2026-03-02T08:00:00Z within 60d".parse()?;
/// assert_eq!(request.within_days, Some(60));
/// assert_eq!(request.to_string(), "2026-03-02T08:00:00Z within 60d");
/// # Ok::<(), refit_kinds::refit::BadRenewal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalRequest {
    /// When it was asked for.
    pub asked_at: Timestamp,
    /// The days; `None`: all certificates are renewed.
    pub within_days: Option<i32>,
}

/// Why a text is not a request to renew certificates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid request {0:?}: expected a time such as 2026-03-02T08:00:00Z, alone or followed by ` within DAYSd`, \
     from 1d to {RENEW_ALWAYS_DAYS}d"
)]
pub struct BadRenewal(String);

impl RenewalRequest {
    /// What it asks for.
    pub fn goal(self) -> Goal {
        let certificates =
            GoalCertificates { within_days: self.within_days, lifetime_seconds: None };
        Goal { certificates: Some(certificates), ..Goal::default() }
    }
}

impl fmt::Display for RenewalRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.within_days {
            Some(days) => write!(f, "{}{WITHIN}{days}d", self.asked_at),
            None => write!(f, "{}", self.asked_at),
        }
    }
}

impl FromStr for RenewalRequest {
    type Err = BadRenewal;

    fn from_str(text: &str) -> Result<Self, BadRenewal> {
        let bad = || BadRenewal(text.to_owned());
        let (time, days) = match text.split_once(WITHIN) {
            Some((time, days)) => (time, Some(days)),
            None => (text, None),
        };
        let days_of = |days: &str| {
            let days: i32 = days.strip_suffix('d')?.parse().ok()?;
            (1..=RENEW_ALWAYS_DAYS).contains(&days).then_some(days)
        };
        Ok(Self {
            asked_at: time.parse().map_err(|_| bad())?,
            within_days: days.map(|days| days_of(days).ok_or_else(bad)).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_a_time_with_or_without_a_number_of_days() {
        for (text, within_days) in [
            ("2026-03-02T08:00:00Z", None),
            ("2026-03-02T08:00:00Z within 1d", Some(1)),
            ("2026-03-02T08:00:00Z within 36500d", Some(36_500)),
        ] {
            let request: RenewalRequest = text.parse().unwrap();
            assert_eq!((request.within_days, request.to_string()), (within_days, text.to_owned()));
            assert_eq!(request.goal().certificates.unwrap().within_days, within_days);
        }
        for text in [
            "",
            "now",
            "true",
            "2026-03-02",
            "2026-03-02T08:00:00Z within",
            "2026-03-02T08:00:00Z within 60",
            "2026-03-02T08:00:00Z within 0d",
            "2026-03-02T08:00:00Z within -1d",
            "2026-03-02T08:00:00Z within 36501d",
            "2026-03-02T08:00:00Z within 60d ",
        ] {
            let error = text.parse::<RenewalRequest>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(
            second in 0_i64..4_000_000_000,
            within_days in proptest::option::of(1..=RENEW_ALWAYS_DAYS),
        ) {
            let asked_at = Timestamp::from_second(second).unwrap();
            let request = RenewalRequest { asked_at, within_days };
            prop_assert_eq!(request.to_string().parse::<RenewalRequest>(), Ok(request));
        }

        #[test]
        fn any_text_is_a_request_for_days_in_range_or_an_error_that_names_it(
            text in "(2026-03-02T08:00:00Z)?[ 0-9a-z-]{0,20}",
        ) {
            let named = format!("{text:?}");
            match text.parse::<RenewalRequest>() {
                Ok(request) => {
                    let args = request.goal().certificates.unwrap_or_default().renewal();
                    prop_assert!((1..=RENEW_ALWAYS_DAYS).contains(&args.renew_within_days));
                }
                Err(why) => prop_assert!(why.to_string().contains(&named)),
            }
        }
    }
}
