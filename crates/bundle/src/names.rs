//! Names that are safe as paths and as arguments, wherever they came from.

use std::collections::BTreeMap;

/// Longest path of a file in a bundle.
const LONGEST_PATH: usize = 240;
/// Longest part of such a path.
const LONGEST_PART: usize = 160;
/// Most parts of such a path.
const DEEPEST: usize = 4;

/// What is wrong with a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// It is empty, or one of its parts is.
    #[error("it has an empty part")]
    Empty,
    /// It is too long.
    #[error("it is longer than {LONGEST_PATH} bytes, or a part of it than {LONGEST_PART}")]
    Long,
    /// It is too deep.
    #[error("it has more than {DEEPEST} parts")]
    Deep,
    /// A part starts with a dot or a dash: hidden, a way out of the directory, or an option.
    #[error("a part of it starts with {0:?}")]
    Start(char),
    /// A character that no file of a bundle has.
    #[error("it has the character {0:?}")]
    Character(char),
    /// Two files would be one on some file systems.
    #[error("it differs from {0} in nothing but case")]
    Twice(String),
    /// It is a file and a directory.
    #[error("it is a file, and {0} needs it to be a directory")]
    Directory(String),
}

/// Whether a path is one that a bundle may have: relative, plain, without a way out.
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
        let odd = |c: &char| !(c.is_ascii_alphanumeric() || "._+~:@%=^-".contains(*c));
        if let Some(odd) = part.chars().find(odd) {
            return Err(PathProblem::Character(odd));
        }
    }
    Ok(())
}

/// Whether all paths can stand in one directory; names the first that cannot.
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

/// Whether a text is a name or version of a package: nothing that a shell, a path or an option
/// parser would read otherwise.
pub fn is_package_word(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+~:^-".contains(c);
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(allowed)
}

/// Whether a text names an image: `registry/repository:tag`, with a digest or without.
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
    fn paths_that_leave_the_directory_or_read_as_options_are_refused() {
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
            let odd = bad == "~";
            assert_eq!(check_path(bad).is_err(), !odd, "{bad:?}");
        }
        assert_eq!(check_path(&"a".repeat(161)), Err(PathProblem::Long));
        for good in ["packages/kubelet_1.35.0-1.1_amd64.deb", "files/a/b%3a1", "x"] {
            assert_eq!(check_path(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn two_files_that_some_file_system_takes_for_one_are_refused() {
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
    fn image_names_are_told_from_others() {
        for good in ["registry.k8s.io/pause:3.10", "localhost:5000/a/b:c", "a/b:c"] {
            assert!(is_image_name(good), "{good}");
        }
        for bad in ["pause", "pause:3", "a//b:c", "a/b", "-a/b:c", "a/b:c d", "a:1/b"] {
            assert!(!is_image_name(bad), "{bad}");
        }
    }
}
