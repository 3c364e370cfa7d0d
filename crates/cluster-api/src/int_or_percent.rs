//! A number or a percentage of the replicas: the only code that parses and rounds them.

use std::{fmt, str::FromStr};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

/// A number or a percentage of the replicas.
///
/// Kinds use Kubernetes' [`IntOrString`], which keeps the text as the user wrote it and also
/// accepts invalid values: one invalid value must not make a watch fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IntOrPercent {
    /// A number of machines.
    Int(i64),
    /// A percentage of the replicas.
    Percent(i64),
}

/// The value is neither a number nor a percentage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value {0:?}, expected a number of machines or a percentage such as \"25%\"")]
pub struct ParseIntOrPercentError(pub String);

impl IntOrPercent {
    /// Returns the number of machines out of `total`, rounded up.
    pub fn rounded_up(self, total: i64) -> i64 {
        match self {
            Self::Int(count) => count,
            Self::Percent(percent) => {
                let parts = percent.saturating_mul(total);
                parts.div_euclid(100) + i64::from(parts.rem_euclid(100) != 0)
            }
        }
    }

    /// Returns the number of machines out of `total`, rounded down.
    pub fn rounded_down(self, total: i64) -> i64 {
        match self {
            Self::Int(count) => count,
            Self::Percent(percent) => percent.saturating_mul(total).div_euclid(100),
        }
    }
}

impl IntOrPercent {
    /// Parses an optional field.
    pub fn read(field: Option<&IntOrString>, default: i64) -> Result<Self, ParseIntOrPercentError> {
        field.map_or(Ok(Self::Int(default)), Self::try_from)
    }
}

impl TryFrom<&IntOrString> for IntOrPercent {
    type Error = ParseIntOrPercentError;

    fn try_from(field: &IntOrString) -> Result<Self, Self::Error> {
        match field {
            IntOrString::Int(count) => count.to_string().parse(),
            IntOrString::String(text) => percentage(text),
        }
    }
}

impl TryFrom<&Value> for IntOrPercent {
    type Error = ParseIntOrPercentError;

    /// Parses a number or a string.
    fn try_from(value: &Value) -> Result<Self, Self::Error> {
        value.as_str().map_or_else(|| value.to_string().parse(), percentage)
    }
}

/// A string must be a percentage: Kubernetes refuses a number in quotes.
fn percentage(text: &str) -> Result<IntOrPercent, ParseIntOrPercentError> {
    if !text.ends_with('%') {
        return Err(ParseIntOrPercentError(text.to_owned()));
    }
    text.parse()
}

impl FromStr for IntOrPercent {
    type Err = ParseIntOrPercentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (digits, percent) = match text.strip_suffix('%') {
            Some(digits) => (digits, true),
            None => (text, false),
        };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ParseIntOrPercentError(text.to_owned()));
        }
        let number: u32 = digits.parse().map_err(|_| ParseIntOrPercentError(text.to_owned()))?;
        let number = i64::from(number);
        Ok(if percent { Self::Percent(number) } else { Self::Int(number) })
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(count) => write!(out, "{count}"),
            Self::Percent(percent) => write!(out, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_reads_what_it_prints() {
        for text in ["0", "3", "25%", "100%"] {
            assert_eq!(text.parse::<IntOrPercent>().unwrap().to_string(), text);
        }
        let both = |value: serde_json::Value| {
            let field: IntOrString = serde_json::from_value(value.clone()).unwrap();
            let read = IntOrPercent::read(Some(&field), 1);
            assert_eq!(IntOrPercent::try_from(&value), read);
            read
        };
        assert_eq!(both(json!(2)), Ok(IntOrPercent::Int(2)));
        assert_eq!(both(json!("25%")), Ok(IntOrPercent::Percent(25)));
        for wrong in [json!("2"), json!(-1), json!("-5%")] {
            assert!(both(wrong).is_err());
        }
        assert!(IntOrPercent::try_from(&json!({})).is_err());
        for text in ["", "%", "-1", "1.5", "x", "99999999999"] {
            assert!(text.parse::<IntOrPercent>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_field_that_is_absent_has_its_default() {
        assert_eq!(IntOrPercent::read(None, 1), Ok(IntOrPercent::Int(1)));
        let wrong = IntOrString::String("many".to_owned());
        assert!(IntOrPercent::read(Some(&wrong), 1).is_err());
    }

    #[test]
    fn percentages_round_up_for_surge_and_down_for_unavailable() {
        let quarter = IntOrPercent::Percent(25);
        assert_eq!((quarter.rounded_up(5), quarter.rounded_down(5)), (2, 1));
        assert_eq!((quarter.rounded_up(8), quarter.rounded_down(8)), (2, 2));
        let three = IntOrPercent::Int(3);
        assert_eq!((three.rounded_up(5), three.rounded_down(5)), (3, 3));
    }
}
