//! Paths of a claim: patterns that name values of a machine's objects.
//!
//! A path names a value of the machine's own object; in a template the same value is found below
//! `/spec/template`.
//!
//! | path | claims |
//! |---|---|
//! | `/spec/memoryMiB` | the value, unless it is an object or a list |
//! | `/spec/image/**` | the value and everything in it |
//! | `/spec/disks/*/sizeGiB` | the value in each member or element |
//! | `/spec/files[path=/etc/x]/content` | the value in the list element whose `path` is `/etc/x` |
//!
//! In a name, `~1` stands for `/` and `~0` for `~`, as in a JSON pointer.

use std::{fmt, str::FromStr};

/// A pattern of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath {
    text: String,
    pub(super) steps: Vec<Step>,
    /// Whether it claims everything below as well.
    pub(super) below: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A member of an object.
    Key(String),
    /// Any member of an object or element of a list.
    Any,
    /// The element of a list in which a member has a value.
    Element { key: String, value: String },
}

/// Why a text is not a path of a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadClaimPath {
    /// Cluster API compares nothing but specs.
    #[error("{0:?} does not begin with /spec/")]
    NotInSpec(String),
    /// Two slashes follow each other, or the path ends with one.
    #[error("{0:?} has an empty name")]
    EmptyName(String),
    /// `**` is not at the end.
    #[error("{0:?} has ** before its end")]
    BelowNotLast(String),
    /// A name has a `*` or a bracket in it, or a `~` without 0 or 1.
    #[error("{0:?} has a name with *, ] or a single ~ in it: * stands alone, and ~0 means ~")]
    BadName(String),
    /// It ends with a list element, which is an object.
    #[error("{0:?} ends with a list element: add /** for all of it, or the name of a value")]
    WholeElement(String),
    /// An element is not selected by `[key=value]`.
    #[error(
        "{0:?} selects a list element otherwise than by [key=value] after the name of the list"
    )]
    BadElement(String),
}

impl FromStr for ClaimPath {
    type Err = BadClaimPath;

    fn from_str(text: &str) -> Result<Self, BadClaimPath> {
        let wrong = |why: fn(String) -> BadClaimPath| why(text.to_owned());
        let mut rest = text.strip_prefix('/').ok_or_else(|| wrong(BadClaimPath::NotInSpec))?;
        let (mut steps, mut below) = (Vec::new(), false);
        loop {
            let (name, tail) = rest.split_at(rest.find(['/', '[']).unwrap_or(rest.len()));
            if below {
                return Err(wrong(BadClaimPath::BelowNotLast));
            }
            match name {
                "**" => below = true,
                "*" => steps.push(Step::Any),
                name => steps.push(Step::Key(plain_name(name).map_err(wrong)?)),
            }
            let (element, tail) = element_step(tail)
                .filter(|(element, _)| element.is_none() || !below)
                .ok_or_else(|| wrong(BadClaimPath::BadElement))?;
            steps.extend(element);
            match tail.strip_prefix('/') {
                Some(tail) => rest = tail,
                None if tail.is_empty() => break,
                None => return Err(wrong(BadClaimPath::BadElement)),
            }
        }
        match (steps.first(), steps.last()) {
            (Some(Step::Key(first)), Some(last)) if first == "spec" => match last {
                Step::Element { .. } if !below => Err(wrong(BadClaimPath::WholeElement)),
                Step::Key(_) if steps.len() == 1 && !below => Err(wrong(BadClaimPath::NotInSpec)),
                Step::Key(_) | Step::Any | Step::Element { .. } => {
                    Ok(Self { text: text.to_owned(), steps, below })
                }
            },
            _ => Err(wrong(BadClaimPath::NotInSpec)),
        }
    }
}

/// The name of a member, without escapes.
fn plain_name(name: &str) -> Result<String, fn(String) -> BadClaimPath> {
    let has_escapes = name.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    match name {
        "" => Err(BadClaimPath::EmptyName),
        name if name.contains(['*', ']']) || !has_escapes => Err(BadClaimPath::BadName),
        name => Ok(name.replace("~1", "/").replace("~0", "~")),
    }
}

/// The step of a text that may begin with `[key=value]`, and what follows; `None` if it is wrong.
fn element_step(text: &str) -> Option<(Option<Step>, &str)> {
    let Some(selector) = text.strip_prefix('[') else {
        return Some((None, text));
    };
    let (selector, tail) = selector.split_once(']')?;
    let (key, value) = selector.split_once('=').filter(|(key, _)| !key.is_empty())?;
    Some((Some(Step::Element { key: key.to_owned(), value: value.to_owned() }), tail))
}

impl fmt::Display for ClaimPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_path_is_refused_with_its_text() {
        use BadClaimPath::{BadElement, BadName, BelowNotLast, EmptyName, NotInSpec, WholeElement};
        type Why = fn(String) -> BadClaimPath;
        let table: [(&str, Why); 18] = [
            ("", NotInSpec),
            ("spec/a", NotInSpec),
            ("/spec", NotInSpec),
            ("/metadata/labels/**", NotInSpec),
            ("/**", NotInSpec),
            ("/spec/", EmptyName),
            ("/spec//a", EmptyName),
            ("/spec/**/a", BelowNotLast),
            ("/spec/a[path=/x", BadElement),
            ("/spec/a[0]", BadElement),
            ("/spec/a[=x]", BadElement),
            ("/spec/a[b=c]d", BadElement),
            ("/spec/disk*/x", BadName),
            ("/spec/***", BadName),
            ("/spec/a~2", BadName),
            ("/spec/a]", BadName),
            ("/spec/files[path=/a]", WholeElement),
            ("/spec/files/**[path=/a]", BadElement),
        ];
        for (text, why) in table {
            assert_eq!(text.parse::<ClaimPath>(), Err(why(text.to_owned())), "{text}");
        }
        for text in ["/spec/**", "/spec/a~1b", "/spec/*/b", "/spec/files[path=/etc/x]/content"] {
            assert_eq!(text.parse::<ClaimPath>().unwrap().to_string(), text);
        }
    }
}
