//! Patterns that select machine pools by name.

use regex::Regex;

/// A pattern for names of machine pools, with `*`, `?` and `[classes]`.
#[derive(Clone, Debug)]
pub struct PoolGlob(Regex);

impl PoolGlob {
    /// Parses a pattern by the rules of Go's `path.Match`, `None` if it is malformed. A range that is reversed, which
    /// matches nothing there, is malformed here.
    pub fn parse(pattern: &str) -> Option<Self> {
        let mut regex = String::from("^");
        let mut rest = pattern.chars();
        while let Some(next) = rest.next() {
            match next {
                '*' => regex.push_str("[^/]*"),
                '?' => regex.push_str("[^/]"),
                '[' => regex.push_str(&class(&mut rest)?),
                '\\' => regex.push_str(&literal(rest.next()?)),
                other => regex.push_str(&literal(other)),
            }
        }
        regex.push('$');
        Regex::new(&format!("(?s){regex}")).ok().map(Self)
    }

    /// Whether it matches the whole name.
    pub fn matches(&self, pool: &str) -> bool {
        self.0.is_match(pool)
    }
}

/// Translates a class of characters, from after its `[` to its `]`.
fn class(rest: &mut std::str::Chars<'_>) -> Option<String> {
    let mut regex = String::from("[");
    if rest.as_str().starts_with('^') {
        rest.next();
        regex.push('^');
    }
    loop {
        let low = class_char(rest)?;
        let mut high = low;
        if rest.as_str().starts_with('-') {
            rest.next();
            high = class_char(rest)?;
        }
        regex.push_str(&[literal(low), literal(high)].join("-"));
        if rest.as_str().starts_with(']') {
            rest.next();
            regex.push(']');
            return Some(regex);
        }
    }
}

fn class_char(rest: &mut std::str::Chars<'_>) -> Option<char> {
    match rest.next()? {
        '-' | ']' => None,
        '\\' => rest.next(),
        other => Some(other),
    }
}

fn literal(char: char) -> String {
    regex::escape(&char.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, pool, matches) in [
            ("non-serving-*", "non-serving-", true),
            ("non-serving-*", "non-serving-9a", true),
            ("non-serving-*", "a-non-serving-9a", false),
            ("*", "a/b", false),
            ("infra", "infra", true),
            ("infra", "infra-2", false),
            ("pool-?a", "pool-9a", true),
            ("pool-?a", "pool-a", false),
            ("pool-[0-9]*", "pool-9a", true),
            ("pool-[^0-9]*", "pool-9a", false),
            ("pool-[^0-9]*", "pool-aa", true),
            ("[a\\-c]", "-", true),
            ("[a\\-c]", "b", false),
            ("[&&~~^]", "^", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a.c+", "abc", false),
            ("", "", true),
        ] {
            let glob = PoolGlob::parse(pattern).unwrap();
            assert_eq!(glob.matches(pool), matches, "{pattern} {pool}");
        }
    }

    #[test]
    fn malformed_patterns_are_rejected() {
        for pattern in ["[invalid", "[", "[]", "[]a]", "[^]", "[a-]", "[-a]", "[z-a]", "a\\", "[\\"]
        {
            assert!(PoolGlob::parse(pattern).is_none(), "{pattern}");
        }
    }
}
