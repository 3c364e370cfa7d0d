//! Checks that names from any source are safe as paths and as arguments.

use std::collections::BTreeMap;

/// Maximum length of a path in a bundle.
const LONGEST_PATH: usize = 240;
/// Maximum length of one component of a path.
const LONGEST_PART: usize = 160;
/// Maximum number of components of a path.
const DEEPEST: usize = 4;

/// Why a path is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// The path or one of its components is empty.
    #[error("it has an empty component")]
    Empty,
    /// The path is too long.
    #[error("it exceeds {LONGEST_PATH} bytes, or a component exceeds {LONGEST_PART}")]
    Long,
    /// The path has too many components.
    #[error("it has more than {DEEPEST} components")]
    Deep,
    /// A component starts with a dot or a dash: a hidden file, a parent directory, or an option.
    #[error("a component starts with {0:?}")]
    Start(char),
    /// The path contains a character that is not allowed.
    #[error("it contains the character {0:?}")]
    Character(char),
    /// Two paths name the same file on some file systems.
    #[error("it differs from {0} only in case")]
    Twice(String),
    /// The path is both a file and a directory.
    #[error("it is a file, but {0} requires a directory")]
    Directory(String),
}

/// Checks that a path is allowed in a bundle: relative, plain and inside its directory.
pub fn check_path(path: &str) -> Result<(), PathProblem> {
    if path.len() > LONGEST_PATH {
        return Err(PathProblem::Long);
    }
    if path.split('/').count() > DEEPEST {
        return Err(PathProblem::Deep);
    }
    for part in path.split('/') {
        match part.chars().next() {
            None => return Err(PathProblem::Empty),
            Some(start @ ('.' | '-')) => return Err(PathProblem::Start(start)),
            Some(_) => {}
        }
        if part.len() > LONGEST_PART {
            return Err(PathProblem::Long);
        }
        let is_forbidden = |c: &char| !(c.is_ascii_alphanumeric() || "._+~:@%=^-".contains(*c));
        if let Some(character) = part.chars().find(is_forbidden) {
            return Err(PathProblem::Character(character));
        }
    }
    Ok(())
}

/// Checks that all paths can exist in one directory; the error names the first that cannot.
pub fn check_together<'a>(
    paths: impl IntoIterator<Item = &'a str>,
) -> Result<(), (String, PathProblem)> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for path in paths {
        if let Some(other) = seen.insert(path.to_ascii_lowercase(), path) {
            return Err((path.to_owned(), PathProblem::Twice(other.to_owned())));
        }
    }
    for (lower, path) in &seen {
        for (at, _) in lower.match_indices('/') {
            if let Some(file) = lower.get(..at).and_then(|directory| seen.get(directory)) {
                let problem = PathProblem::Directory((*path).to_owned());
                return Err(((*file).to_owned(), problem));
            }
        }
    }
    Ok(())
}

/// Reports whether a text is a valid package name or version: nothing that a shell, a path or an
/// option parser interprets.
pub fn is_package_word(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+~:^-".contains(c);
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
}

/// Reports whether a text is an image name: `registry/repository:tag`, with or without a digest.
pub fn is_image_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    text.len() <= 400
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
        && text.contains('/')
        && text.rsplit('/').next().is_some_and(|last| last.contains(':'))
        && !text.contains("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_the_directory_or_like_options_are_refused() {
        for bad in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            ".hidden",
            "a/.b",
            "-rf",
            "a/-o",
            "a\\b",
            "a b",
            "a\0",
            "ä",
            "a\nb",
            "a/b/c/d/e",
            "~",
            "a*",
        ] {
            let is_allowed = bad == "~";
            assert_eq!(check_path(bad).is_err(), !is_allowed, "{bad:?}");
        }
        assert_eq!(check_path(&"a".repeat(161)), Err(PathProblem::Long));
        for good in ["packages/kubelet_1.35.0-1.1_amd64.deb", "files/a/b%3a1", "x"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn files_that_collide_on_some_file_systems_are_refused() {
        assert!(check_together(["a/b", "a/c", "b"]).is_ok());
        let (path, problem) = check_together(["files/A", "files/a"]).unwrap_err();
        assert_eq!((path.as_str(), problem), ("files/a", PathProblem::Twice("files/A".into())));
        let (path, problem) = check_together(["files/a/b", "files/a", "files/a-b"]).unwrap_err();
        assert_eq!(
            (path.as_str(), problem),
            ("files/a", PathProblem::Directory("files/a/b".into()))
        );
    }

    #[test]
    fn image_names_are_recognized() {
        for good in ["registry.k8s.io/pause:3.10", "localhost:5000/a/b:c", "a/b:c"] {
            assert!(is_image_name(good), "{good}");
        }
        for bad in ["pause", "pause:3", "a//b:c", "a/b", "-a/b:c", "a/b:c d", "a:1/b"] {
            assert!(!is_image_name(bad), "{bad}");
        }
    }
}
