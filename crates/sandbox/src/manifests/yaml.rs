//! YAML to JSON, with the line of every node.

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
    /// The line of a node, or of the nearest node above it that exists.
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

    /// The lines of the object that stands at `pointer` in this one.
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

/// The documents of one file; empty ones are left out.
pub(super) fn documents(file: &str, text: &[u8]) -> Result<Vec<(Value, Lines)>, Box<Problem>> {
    let wrong = |line: u64, got: String| {
        Box::new(Problem {
            file: file.to_owned(),
            line,
            object: "document".to_owned(),
            field: "YAML".to_owned(),
            got,
            want: "a Kubernetes object in YAML or JSON".to_owned(),
        })
    };
    let text = std::str::from_utf8(text).map_err(|error| {
        let before = &text[..error.valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        wrong(line, "bytes that are not UTF-8".to_owned())
    })?;
    let nodes: Vec<Spanned<Node>> = serde_saphyr::from_multiple(text).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        wrong(line, first_line(&error.to_string()))
    })?;
    let mut documents = Vec::new();
    for node in nodes {
        let line = node.referenced.line();
        let mut lines = Lines::default();
        match flatten(node, "", &mut lines) {
            Value::Null => {}
            object @ Value::Object(_) => documents.push((object, lines)),
            other => return Err(wrong(line, super::shown(Some(&other)))),
        }
    }
    Ok(documents)
}

/// The parser's own message without the picture of the place that follows it.
fn first_line(message: &str) -> String {
    let line = message
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("something else");
    line.trim_start_matches("error: ").to_owned()
}

fn flatten(node: Spanned<Node>, pointer: &str, lines: &mut Lines) -> Value {
    lines
        .by_pointer
        .insert(pointer.to_owned(), node.referenced.line());
    match node.value {
        Node::Scalar(value) => value,
        Node::List(items) => {
            let item = |(i, item)| flatten(item, &format!("{pointer}/{i}"), lines);
            Value::Array(items.into_iter().enumerate().map(item).collect())
        }
        Node::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                let below = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                map.insert(key, flatten(value, &below, lines));
            }
            Value::Object(map)
        }
    }
}

enum Node {
    Scalar(Value),
    List(Vec<Spanned<Node>>),
    Map(Vec<(String, Spanned<Node>)>),
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
        // JSON has no number for infinity and NaN: they stay the text that YAML gives them.
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
