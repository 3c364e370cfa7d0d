//! Kubernetes versions, as far as a preflight check compares them.

/// A version `vX.Y.Z`; what follows (`+build`, `-pre`) is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// X.
    pub(crate) major: u32,
    /// Y.
    pub(crate) minor: u32,
    /// Z.
    pub(crate) patch: u32,
}

impl Version {
    /// Reads `vX.Y.Z`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let core = text.split(['+', '-']).next()?;
        let mut numbers = core.split('.').map(|part| part.parse().ok());
        let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(Self { major, minor, patch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number() {
        let parse = |text| Version::parse(text).unwrap();
        assert!(parse("v1.9.0") < parse("v1.10.0"));
        assert!(parse("v1.34.2") < parse("1.35.0"));
        assert_eq!(parse("v1.34.2+k3s1"), parse("v1.34.2"));
        for text in ["", "v1", "v1.34", "v1.34.x", "v1.2.3.4", "latest"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }
}
