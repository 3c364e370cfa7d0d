//! The JSONPath of CRDs' `additionalPrinterColumns` and `scale`: Kubernetes' dialect, restricted to
//! a single path (no templates).

use serde_json::Value;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// `.name` or `['name']`.
    Field(String),
    /// `[*]` or `.*`.
    All,
    /// `[2]`, `[-1]`.
    Index(i64),
    /// `[1:3]`.
    Slice(Option<i64>, Option<i64>),
    /// `..name`.
    Deep(String),
    /// `[?(@.type=="Ready")]`.
    Filter(Filter),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    path: JsonPath,
    /// `None` tests whether the path exists.
    test: Option<(Compare, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Maximum length of a path in bytes, which also bounds the recursion of nested filters.
const MOST_BYTES: usize = 1000;

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
        if inner.len() > MOST_BYTES {
            return Err(format!("is longer than {MOST_BYTES} bytes"));
        }
        let inner = inner.strip_prefix('$').unwrap_or(inner);
        let steps = Parser { rest: inner }.steps()?;
        Ok(Self(steps))
    }

    /// All values that the path matches, in order.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.0 {
            let mut next = Vec::new();
            for value in found {
                step.follow(value, &mut next);
            }
            found = next;
        }
        found
    }

    /// The first value that the path matches; null does not count.
    pub(crate) fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.find(value).into_iter().find(|value| !value.is_null())
    }

    /// The names of a path that consists of names only.
    pub(crate) fn names(&self) -> Option<Vec<&str>> {
        self.0
            .iter()
            .map(|step| match step {
                Step::Field(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value, into: &mut Vec<&'a Value>) {
        match (self, value) {
            (Self::Field(name), Value::Object(map)) => into.extend(map.get(name)),
            (Self::All, Value::Object(map)) => into.extend(map.values()),
            (Self::All, Value::Array(list)) => into.extend(list),
            (Self::Index(index), Value::Array(list)) => {
                into.extend(place(*index, list.len()).and_then(|index| list.get(index)));
            }
            (Self::Slice(from, to), Value::Array(list)) => {
                let end = |at: &Option<i64>, default: usize| {
                    at.map_or(default, |at| place(at, list.len()).unwrap_or(0))
                };
                let (from, to) = (end(from, 0), end(to, list.len()));
                into.extend(list.iter().take(to).skip(from));
            }
            (Self::Deep(name), value) => deep(name, value, into),
            (Self::Filter(filter), Value::Array(list)) => {
                into.extend(list.iter().filter(|item| filter.holds(item)));
            }
            _ => {}
        }
    }
}

/// An index that may count from the end.
fn place(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { index + length } else { index }).ok()
}

fn deep<'a>(name: &str, value: &'a Value, into: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            into.extend(map.get(name));
            for item in map.values() {
                deep(name, item, into);
            }
        }
        Value::Array(list) => {
            for item in list {
                deep(name, item, into);
            }
        }
        _ => {}
    }
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let found = self.path.find(item);
        let Some((compare, wanted)) = &self.test else {
            return !found.is_empty();
        };
        let Some(found) = found.first() else {
            return false;
        };
        let order = match (found, wanted) {
            (Value::String(found), Value::String(wanted)) => Some(found.cmp(wanted)),
            (Value::Bool(found), Value::Bool(wanted)) => Some(found.cmp(wanted)),
            _ => match (found.as_f64(), wanted.as_f64()) {
                (Some(found), Some(wanted)) => found.partial_cmp(&wanted),
                _ => None,
            },
        };
        let Some(order) = order else {
            return *compare == Compare::NotEqual;
        };
        match compare {
            Compare::Equal => order.is_eq(),
            Compare::NotEqual => order.is_ne(),
            Compare::Less => order.is_lt(),
            Compare::LessOrEqual => order.is_le(),
            Compare::Greater => order.is_gt(),
            Compare::GreaterOrEqual => order.is_ge(),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn steps(mut self) -> Result<Vec<Step>, String> {
        let mut steps = Vec::new();
        while !self.rest.is_empty() {
            if self.eat("..") {
                steps.push(Step::Deep(self.name()?));
            } else if self.eat(".") {
                if self.rest.is_empty() {
                    break;
                }
                if self.rest.starts_with('[') {
                    continue;
                }
                steps.push(match self.name()?.as_str() {
                    "*" => Step::All,
                    name => Step::Field(name.to_owned()),
                });
            } else if self.eat("[") {
                let inside = self.bracket()?;
                steps.push(subscript(inside)?);
            } else if steps.is_empty() {
                // A path may start without a dot.
                steps.push(Step::Field(self.name()?));
            } else {
                return Err(format!("has an unexpected {:?}", self.rest));
            }
        }
        Ok(steps)
    }

    /// A name up to the next dot or bracket; a backslash escapes the next character.
    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        let mut letters = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => match letters.next() {
                    Some((_, letter)) => name.push(letter),
                    None => return Err("ends with a backslash".to_owned()),
                },
                '.' | '[' => {
                    end = at;
                    break;
                }
                letter => name.push(letter),
            }
        }
        self.rest = self.rest.get(end..).unwrap_or_default();
        if name.is_empty() {
            return Err("has an empty name".to_owned());
        }
        Ok(name)
    }

    /// The text up to the bracket that closes the current one.
    fn bracket(&mut self) -> Result<&'a str, String> {
        let (mut open, mut quote) = (1, None);
        for (at, letter) in self.rest.char_indices() {
            match (quote, letter) {
                (Some(mark), letter) if mark == letter => quote = None,
                (None, '\'' | '"') => quote = Some(letter),
                (None, '[') => open += 1,
                (None, ']') => {
                    open -= 1;
                    if open == 0 {
                        let inside = self.rest.get(..at).unwrap_or_default();
                        self.rest = self.rest.get(at + 1..).unwrap_or_default();
                        return Ok(inside);
                    }
                }
                _ => {}
            }
        }
        Err("has an unterminated '['".to_owned())
    }
}

fn subscript(inside: &str) -> Result<Step, String> {
    let inside = inside.trim();
    if inside == "*" {
        return Ok(Step::All);
    }
    if let Some(name) = quoted(inside) {
        return Ok(Step::Field(name.to_owned()));
    }
    if let Some(filter) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return Ok(Step::Filter(filter_of(filter)?));
    }
    let number = |text: &str| {
        text.trim().parse::<i64>().map_err(|_| format!("has an invalid array index {inside:?}"))
    };
    if let Some((from, to)) = inside.split_once(':') {
        let end = |text: &str| match text.trim() {
            "" => Ok(None),
            text => number(text).map(Some),
        };
        return Ok(Step::Slice(end(from)?, end(to)?));
    }
    Ok(Step::Index(number(inside)?))
}

fn quoted(text: &str) -> Option<&str> {
    ['\'', '"'].into_iter().find_map(|mark| text.strip_prefix(mark)?.strip_suffix(mark))
}

fn filter_of(text: &str) -> Result<Filter, String> {
    const OPERATORS: [(&str, Compare); 6] = [
        ("==", Compare::Equal),
        ("!=", Compare::NotEqual),
        ("<=", Compare::LessOrEqual),
        (">=", Compare::GreaterOrEqual),
        ("<", Compare::Less),
        (">", Compare::Greater),
    ];
    let (mut quote, mut split) = (None, None);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(mark), letter) if mark == letter => quote = None,
            (None, '\'' | '"') => quote = Some(letter),
            (None, '=' | '!' | '<' | '>') => {
                split = Some(at);
                break;
            }
            _ => {}
        }
    }
    let path = |text: &str| {
        let text = text.trim();
        let text = text
            .strip_prefix('@')
            .ok_or_else(|| format!("has a filter that does not start with '@': {text:?}"))?;
        JsonPath::parse(text)
    };
    let Some(at) = split else {
        return Ok(Filter { path: path(text)?, test: None });
    };
    let (left, right) = text.split_at(at);
    let (operator, compare) = OPERATORS
        .into_iter()
        .find(|(operator, _)| right.starts_with(operator))
        .ok_or_else(|| format!("has an unknown operator in {text:?}"))?;
    let right = right.get(operator.len()..).unwrap_or_default().trim();
    let wanted = match quoted(right) {
        Some(text) => Value::from(text),
        None => serde_json::from_str(right)
            .map_err(|_| format!("compares with a value that is not a literal: {right:?}"))?,
    };
    Ok(Filter { path: path(left)?, test: Some((compare, wanted)) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_form_of_a_path_finds_its_values() {
        let object = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}, "name": "x"},
            "spec": {"list": [1, 2, 3], "kebab-name": true},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "n": 1},
                {"type": "Synced", "status": "False", "n": 2},
            ]},
        });
        let cases = [
            (".metadata.name", json!(["x"])),
            ("{.metadata.name}", json!(["x"])),
            ("metadata.name", json!(["x"])),
            (r".metadata.annotations.a\.b/c", json!(["dotted"])),
            (".metadata.annotations['a.b/c']", json!(["dotted"])),
            (".spec.kebab-name", json!([true])),
            (".spec.list[1]", json!([2])),
            (".spec.list[-1]", json!([3])),
            (".spec.list[-9]", json!([])),
            (".spec.list[1:]", json!([2, 3])),
            (".spec.list[:2]", json!([1, 2])),
            (".spec.list[*]", json!([1, 2, 3])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type == 'Synced')].n", json!([2])),
            (".status.conditions[?(@.n>1)].type", json!(["Synced"])),
            (".status.conditions[?(@.missing)].type", json!([])),
            (".status.conditions[?(@.n!=1)].type", json!(["Synced"])),
            ("..type", json!(["Ready", "Synced"])),
            (".nothing.here", json!([])),
        ];
        for (path, wanted) in cases {
            let parsed = JsonPath::parse(path).unwrap();
            assert_eq!(json!(parsed.find(&object)), wanted, "{path}");
        }
    }

    #[test]
    fn an_invalid_path_has_a_specific_error() {
        for path in [".a[", ".a[x]", ".a[?(type==1)]", ".a[?(@.b==c)]", ".a\\", "....a", ".a]b[0]c"]
        {
            let parsed = JsonPath::parse(path);
            if path == ".a]b[0]c" {
                assert!(parsed.unwrap_err().contains("unexpected"));
            } else {
                assert!(parsed.is_err(), "{path}");
            }
        }
    }

    #[test]
    fn only_plain_paths_have_names() {
        let names = |path| JsonPath::parse(path).unwrap().names().map(|names| names.join("/"));
        assert_eq!(names(".spec.replicas").as_deref(), Some("spec/replicas"));
        assert_eq!(names(".spec.list[0]"), None);
    }
}
