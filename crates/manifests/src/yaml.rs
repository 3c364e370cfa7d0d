//! Converts YAML to JSON, with the line of every node.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use super::Problem;

/// The line of each node of one object, by JSON pointer.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    by_pointer: BTreeMap<String, u64>,
}

impl Lines {
    /// The line of a node, or of its nearest existing ancestor.
    pub(super) fn of(&self, pointer: &str) -> u64 {
        let mut at = pointer;
        loop {
            if let Some(line) = self.by_pointer.get(at) {
                return *line;
            }
            match at.rfind('/') {
                Some(cut) => at = &at[..cut],
                None => return 1,
            }
        }
    }

    /// The lines of the object at `pointer` in this object.
    pub(super) fn below(&self, pointer: &str) -> Self {
        let by_pointer = self
            .by_pointer
            .range(pointer.to_owned()..)
            .take_while(|(key, _)| key.starts_with(pointer))
            .filter_map(|(key, line)| {
                let rest = &key[pointer.len()..];
                (rest.is_empty() || rest.starts_with('/')).then(|| (rest.to_owned(), *line))
            })
            .collect();
        Self { by_pointer }
    }
}

/// The content of a file.
#[derive(Debug, Default)]
pub(super) struct File {
    /// The documents that were read, without empty ones.
    pub(super) documents: Vec<(Value, Lines)>,
    /// The problems of the other documents.
    pub(super) problems: Vec<Problem>,
    /// The texts of documents that are not YAML.
    pub(super) unread: Vec<String>,
}

/// Reads one file. A document that is not YAML does not affect the others.
pub(super) fn read(file: &str, bytes: &[u8]) -> File {
    let mut found = File::default();
    let wrong = |line: u64, got: String| Problem {
        file: file.to_owned(),
        line,
        object: "document".to_owned(),
        field: "YAML".to_owned(),
        got,
        want: "a Kubernetes object in YAML or JSON".to_owned(),
    };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line = before.split(|byte| *byte == b'\n').count() as u64;
            found.problems.push(wrong(line, "bytes that are not UTF-8".to_owned()));
            found.unread.push(String::from_utf8_lossy(bytes).into_owned());
            return found;
        }
    };
    let whole = serde_saphyr::from_multiple::<Spanned<Node>>(text);
    let parts = match whole {
        Ok(nodes) => vec![(0, text, Ok(nodes))],
        Err(error) => match split(text) {
            parts if parts.len() > 1 => parts
                .into_iter()
                .map(|(before, part)| (before, part, serde_saphyr::from_multiple(part)))
                .collect(),
            _ => vec![(0, text, Err(error))],
        },
    };
    for (before, part, nodes) in parts {
        match nodes {
            Ok(nodes) => {
                for node in nodes {
                    let line = node.referenced.line() + before;
                    let mut lines = Lines::default();
                    let value = flatten(node, "", before, &mut lines);
                    if value.is_object() {
                        found.documents.push((value, lines));
                    } else if !value.is_null() {
                        found.problems.push(wrong(line, super::shown(Some(&value))));
                    }
                }
            }
            Err(error) => {
                let line = error.location().map_or(1, |location| location.line());
                let got = first_line(&error.to_string());
                let line = line_of_tab(part, line, &got).unwrap_or(line);
                found.problems.push(wrong(line + before, got));
                found.unread.push(part.to_owned());
            }
        }
    }
    found
}

/// The documents of a text, each with the number of lines before it.
fn split(text: &str) -> Vec<(u64, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            parts.push((start_line, &text[start..at]));
            (start, start_line) = (at, number as u64);
        }
        at += line.len();
    }
    parts.push((start_line, &text[start..]));
    parts
}

/// The parser reports a tab in the indentation at the end of the previous line.
fn line_of_tab(text: &str, line: u64, got: &str) -> Option<u64> {
    if !got.contains("tab") {
        return None;
    }
    let from = usize::try_from(line).ok()?.checked_sub(1)?;
    let has_tab = |line: &str| {
        let rest = line.trim_start_matches([' ', '\t']);
        line[..line.len() - rest.len()].contains('\t')
    };
    let offset = text.lines().skip(from).position(has_tab)?;
    Some(line + offset as u64)
}

/// The parser's own message, without the location before it and the excerpt after it.
fn first_line(message: &str) -> String {
    let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or("something else");
    let line = line.trim_start_matches("error: ");
    let line = match line.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((_, rest)) => rest,
        None => line,
    };
    line.split(", set ").next().unwrap_or(line).to_owned()
}

fn flatten(node: Spanned<Node>, pointer: &str, before: u64, lines: &mut Lines) -> Value {
    lines.by_pointer.insert(pointer.to_owned(), node.referenced.line() + before);
    match node.value {
        Node::Scalar(value) => value,
        Node::List(items) => {
            let item = |(i, item)| flatten(item, &format!("{pointer}/{i}"), before, lines);
            Value::Array(items.into_iter().enumerate().map(item).collect())
        }
        Node::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                let escaped = key.value.replace('~', "~0").replace('/', "~1");
                let below = format!("{pointer}/{escaped}");
                let value = flatten(value, &below, before, lines);
                // The line of a field is the line of its name, however many lines its value has.
                let line = key.referenced.line() + before;
                lines.by_pointer.insert(below, line);
                map.insert(key.value, value);
            }
            Value::Object(map)
        }
    }
}

enum Node {
    Scalar(Value),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<String>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML node")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Number(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Number(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        // JSON has no number for infinity and NaN: they stay strings, as written in YAML.
        let number =
            Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number);
        Ok(Node::Scalar(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(Value::String(value.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}
