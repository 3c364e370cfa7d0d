//! Texts of bounded length.

/// What stands for the part that is left out.
const GAP: &str = " … ";

/// A text of at most `bytes` bytes, which are more than a few: of a longer one, the beginning and the end. The
/// beginning of a message names what failed, its end the cause or the remedy.
pub fn clip(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let kept = bytes.saturating_sub(GAP.len());
    let head = text.floor_char_boundary(kept / 2);
    let tail = text.ceil_char_boundary(text.len() - (kept - kept / 2));
    format!("{}{GAP}{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        assert_eq!(clip("what failed: x; what to do", 26), "what failed: x; what to do");
        assert_eq!(clip("what failed: x; what to do", 25), "what faile … what to do");
        assert_eq!(clip("éééééééé", 13), "éé … éé", "characters stay whole");
    }

    proptest! {
        #[test]
        fn a_clipped_text_is_never_too_long(text in any::<String>(), bytes in 5..200_usize) {
            let clipped = clip(&text, bytes);
            prop_assert!(clipped.len() <= bytes);
            prop_assert!(clipped == text || text.len() > bytes);
        }
    }
}
