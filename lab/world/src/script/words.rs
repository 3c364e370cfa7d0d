//! Splits lines into words; parses and formats durations.

use jiff::SignedDuration;

use super::command::{Wrong, wrong};

/// One word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The word without the quotes around it.
    pub(super) text: String,
    /// The word as written.
    pub(super) source: String,
}

impl Word {
    /// The end marker, if the word starts a here-document.
    pub(super) fn here_document(&self) -> Option<&str> {
        self.source.strip_prefix("<<").filter(|end| !end.is_empty())
    }
}

/// Splits a line into words. Quotes that start a word group its characters and are removed; quotes
/// within a word group and stay, for the keys of fields.
pub(super) fn split(line: &str) -> Result<Vec<Word>, Wrong> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let Some(first) = chars.peek().copied().filter(|c| *c != '#') else {
            return Ok(words);
        };
        let mut source = String::new();
        let mut quote = None;
        while let Some(c) = chars.next_if(|c| quote.is_some() || !c.is_whitespace()) {
            source.push(c);
            match quote {
                Some(open) if c == open => quote = None,
                None if c == '"' || c == '\'' => quote = Some(c),
                _ => {}
            }
        }
        if let Some(open) = quote {
            return Err(wrong("quotes", source, format!("a closing {open}")));
        }
        let whole = matches!(first, '"' | '\'')
            && source.len() >= 2
            && source.ends_with(first)
            && !source[1..source.len() - 1].contains(first);
        let text = if whole { source[1..source.len() - 1].to_owned() } else { source.clone() };
        words.push(Word { text, source });
    }
}

/// Joins words to one text.
pub(super) fn join(words: &[Word]) -> String {
    if words.is_empty() {
        return "the end of the line".to_owned();
    }
    let words: Vec<&str> = words.iter().map(|word| word.source.as_str()).collect();
    words.join(" ")
}

/// Splits at the first `mark` outside double quotes.
pub(super) fn split_outside_quotes(word: &str, mark: char) -> Option<(&str, &str)> {
    let mut quoted = false;
    for (at, c) in word.char_indices() {
        match c {
            '"' => quoted = !quoted,
            c if c == mark && !quoted => return Some((&word[..at], &word[at + c.len_utf8()..])),
            _ => {}
        }
    }
    None
}

/// Parses a duration such as `1h30m`.
pub(super) fn time(word: &str) -> Result<SignedDuration, Wrong> {
    let bad = || wrong("time", word, "a duration such as 30s, 10m or 1h30m");
    if !word.starts_with(|c: char| c.is_ascii_digit()) || word.contains(char::is_whitespace) {
        return Err(bad());
    }
    let time: SignedDuration = word.parse().map_err(|_| bad())?;
    if time.is_negative() || time.subsec_nanos() != 0 || time > SignedDuration::from_hours(1000) {
        return Err(bad());
    }
    Ok(time)
}

/// Formats a duration: `1h02m03s`, `2m14s`, `5s`.
pub(crate) fn shown(time: SignedDuration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}h{minutes:02}m{rest:02}s")
    } else if minutes > 0 {
        format!("{minutes}m{rest:02}s")
    } else {
        format!("{rest}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        let words = split(line).unwrap();
        words.into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn quotes_group_the_characters_of_a_word() {
        assert_eq!(texts("a 'b c' \"d e\" # f"), ["a", "b c", "d e"]);
        assert_eq!(
            texts(r#"change md/a metadata.annotations."refit.dev/x y" '{"a": 1}'"#),
            ["change", "md/a", r#"metadata.annotations."refit.dev/x y""#, r#"{"a": 1}"#]
        );
        assert!(split("a 'b").is_err());
        assert!(texts("  # only a comment").is_empty());
    }

    #[test]
    fn durations_are_parsed_and_formatted_alike() {
        for text in ["0s", "30s", "10m00s", "1h30m00s", "26h00m05s"] {
            assert_eq!(shown(time(text).unwrap()), text);
        }
        assert_eq!(time("90m").unwrap(), time("1h30m").unwrap());
        for bad in ["", "10", "-5m", "m", "1.5s", "5 m", "1d", "100000h"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mark_in_quotes_splits_nothing() {
        let word = r#"metadata."a=b"=c=d"#;
        assert_eq!(split_outside_quotes(word, '='), Some((r#"metadata."a=b""#, "c=d")));
        assert_eq!(split_outside_quotes("abc", '='), None);
    }
}
