//! The words of a statement that are not read yet.

use jiff::SignedDuration;

use super::{
    command::{Reference, Wrong, wrong},
    field::Field,
    words::{self, Word},
};

/// The remaining words of a line.
pub(super) struct Rest<'a> {
    command: String,
    words: &'a [Word],
}

impl<'a> Rest<'a> {
    pub(super) fn new(command: String, words: &'a [Word]) -> Self {
        Self { command, words }
    }

    pub(super) fn next(&mut self, want: &str) -> Result<&'a Word, Wrong> {
        let Some((first, rest)) = self.words.split_first() else {
            return Err(wrong(&self.command, "the end of the line", want));
        };
        self.words = rest;
        Ok(first)
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.words.first().map(|word| word.text.as_str())
    }

    pub(super) fn is_over(&self) -> bool {
        self.words.is_empty()
    }

    /// The name after a word that was already recognized.
    pub(super) fn named(&mut self, word: &str, want: &str) -> Result<String, Wrong> {
        self.skip(word);
        Ok(self.next(want)?.text.clone())
    }

    pub(super) fn skip(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.words = self.words.split_first().map_or(&[], |(_, rest)| rest);
        }
        found
    }

    pub(super) fn rest(&mut self) -> &'a [Word] {
        std::mem::take(&mut self.words)
    }

    pub(super) fn all(&mut self, want: &str) -> Result<Vec<String>, Wrong> {
        let first = self.next(want)?.text.clone();
        let rest = self.rest().iter().map(|word| word.text.clone());
        Ok(std::iter::once(first).chain(rest).collect())
    }

    pub(super) fn reference(&mut self) -> Result<Reference, Wrong> {
        super::parse::reference(&self.next("OBJECT")?.text)
    }

    pub(super) fn fields(&mut self) -> Result<Vec<Field>, Wrong> {
        self.rest().iter().map(|word| Field::parse(&word.text)).collect()
    }

    pub(super) fn time(&mut self, want: &str) -> Result<SignedDuration, Wrong> {
        words::time(&self.next(want)?.text)
    }

    pub(super) fn optional_time(&mut self, word: &str) -> Result<Option<SignedDuration>, Wrong> {
        if self.skip(word) { self.time("TIME").map(Some) } else { Ok(None) }
    }

    pub(super) fn whole_number(&mut self, want: &str) -> Result<u64, Wrong> {
        let word = self.next(want)?;
        word.text.parse().map_err(|_| wrong("number", word.text.as_str(), "a whole number"))
    }

    pub(super) fn number(&mut self, want: &str) -> Result<u32, Wrong> {
        let word = self.next(want)?;
        let number = word.text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| wrong("number", word.text.as_str(), "a whole number from 1"))
    }

    pub(super) fn times(&mut self) -> Result<u32, Wrong> {
        if self.skip("times") { self.number("N") } else { Ok(u32::MAX) }
    }

    pub(super) fn end(&self) -> Result<(), Wrong> {
        if self.is_over() {
            Ok(())
        } else {
            Err(wrong(&self.command, words::join(self.words), "the end of the line"))
        }
    }
}
