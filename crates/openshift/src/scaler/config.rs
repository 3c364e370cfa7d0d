//! The configuration `scale`.

use jiff::SignedDuration;
use regex::Regex;

/// How extra nodes are added.
#[derive(Clone, Debug)]
pub struct ScaleConfig {
    time_out: SignedDuration,
    pools: Vec<PoolPattern>,
}

/// What is wrong with the configuration `scale`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScaleConfigError {
    /// The timeout is not above 0.
    #[error("config scale timeOut is invalid: {0}, expected a number of minutes above 0")]
    TimeOut(i64),
    /// A pattern is malformed.
    #[error(
        "config scale extraMachinePools contains invalid pattern {0:?}, expected a name with the wildcards * and ? and \
         classes such as [a-z]"
    )]
    Pattern(String),
}

impl ScaleConfig {
    /// Reads `scale.timeOut`, in minutes, and `scale.extraMachinePools`.
    ///
    /// # Errors
    /// The timeout is not above 0, or a pattern is malformed.
    pub fn new(time_out_minutes: i64, pools: &[String]) -> Result<Self, ScaleConfigError> {
        let time_out = SignedDuration::try_from_mins(time_out_minutes);
        let time_out = time_out.filter(SignedDuration::is_positive);
        Ok(Self {
            time_out: time_out.ok_or(ScaleConfigError::TimeOut(time_out_minutes))?,
            pools: pools.iter().map(|pool| PoolPattern::new(pool)).collect::<Result<_, _>>()?,
        })
    }

    /// How long an extra node may take until it is Ready.
    pub fn time_out(&self) -> SignedDuration {
        self.time_out
    }

    /// The machine pools whose MachineSets are cloned, in addition to `worker`.
    pub fn pools(&self) -> &[PoolPattern] {
        &self.pools
    }
}

/// A pattern for names of machine pools, with the syntax of Go's `path.Match`.
#[derive(Clone, Debug)]
pub struct PoolPattern(Regex);

impl PoolPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`ScaleConfigError::Pattern`].
    pub fn new(pattern: &str) -> Result<Self, ScaleConfigError> {
        let regex = regex_of(pattern).and_then(|regex| Regex::new(&regex).ok());
        regex.map(Self).ok_or_else(|| ScaleConfigError::Pattern(pattern.to_owned()))
    }

    /// Whether it matches all of a name.
    pub fn matches(&self, pool: &str) -> bool {
        self.0.is_match(pool)
    }
}

/// The regular expression of a pattern; `None` if it is malformed. A name is the value of a label: it contains no `/`,
/// which the wildcards of Go leave out.
fn regex_of(pattern: &str) -> Option<String> {
    let mut regex = r"\A".to_owned();
    let mut rest = pattern.chars().peekable();
    while let Some(one) = rest.next() {
        match one {
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '\\' => push(&mut regex, rest.next()?),
            '[' => {
                regex.push('[');
                regex.extend(rest.next_if_eq(&'^'));
                loop {
                    push(&mut regex, class_member(&mut rest)?);
                    if rest.next_if_eq(&'-').is_some() {
                        regex.push('-');
                        push(&mut regex, class_member(&mut rest)?);
                    }
                    if rest.next_if_eq(&']').is_some() {
                        break;
                    }
                }
                regex.push(']');
            }
            other => push(&mut regex, other),
        }
    }
    Some(regex + r"\z")
}

fn class_member(rest: &mut impl Iterator<Item = char>) -> Option<char> {
    match rest.next()? {
        '\\' => rest.next(),
        '-' | ']' => None,
        other => Some(other),
    }
}

fn push(regex: &mut String, literal: char) {
    regex.push_str(&regex::escape(literal.encode_utf8(&mut [0; 4])));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_go_do() {
        let cases = [
            ("non-serving-*", "non-serving-9a", true),
            ("non-serving-*", "non-serving-", true),
            ("non-serving-*", "x-non-serving-9a", false),
            ("non-serving-?a", "non-serving-9a", true),
            ("non-serving-?a", "non-serving-9", false),
            ("non-serving-[0-9]*", "non-serving-9a", true),
            ("non-serving-[^0-9]*", "non-serving-9a", false),
            ("[ab^&~]x", "^x", true),
            ("[a-c.]x", "bx", true),
            ("a.c", "abc", false),
            (r"a\*", "a*", true),
            (r"[\-x]a", "-a", true),
            ("a]", "a]", true),
            ("", "", true),
            ("a", "a\n", false),
        ];
        for (pattern, pool, matches) in cases {
            let compiled = PoolPattern::new(pattern).unwrap();
            assert_eq!(compiled.matches(pool), matches, "{pattern} {pool}");
        }
        for pattern in ["[invalid", "[]a]", "[-a]", "[a-]", "[", "[^", r"a\", r"[a\"] {
            assert!(PoolPattern::new(pattern).is_err(), "{pattern}");
        }
    }
}
