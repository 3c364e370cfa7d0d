//! The safeguards that a crash sweep can leave out, to prove that it would notice.

/// Which safeguards are in force. Production has all of them; nothing but a sweep's sabotage
/// switches one off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Safeguards {
    /// A NodeUpdate claims a slot of its group by compare-and-swap before it disturbs anything.
    pub slot: bool,
    /// A request for work is found again by the ordinal in the NodeUpdate's name, whose creation
    /// is a compare-and-swap. Without it, what was asked for is known to one process only.
    pub ordinal: bool,
    /// Of several controllers, only the holder of the Lease writes what is the leader's.
    pub lease: bool,
}

impl Default for Safeguards {
    fn default() -> Self {
        Self { slot: true, ordinal: true, lease: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_out_by_default() {
        let Safeguards { slot, ordinal, lease } = Safeguards::default();
        assert!(slot && ordinal && lease);
    }
}
