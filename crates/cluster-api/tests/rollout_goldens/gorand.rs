//! Go's `math/rand` for a seed, bit for bit: it determines the order of a `random(N)` log.
//!
//! It is an additive lagged Fibonacci generator, z[k] = z[k-607] + z[k-273] modulo 2^64, whose
//! seeds are mixed into its own state after 7.8e12 steps. That state is not a table here: the
//! recurrence is linear, so x^7.8e12 modulo x^607 - x^334 - 1 gives it within 43 squarings.

use std::sync::OnceLock;

const LEN: usize = 607;
const TAP: usize = 273;
const WARM_UP_STEPS: u64 = 7_800_000_000_000;

/// One `rand.New(rand.NewSource(seed))`.
pub(crate) struct GoRand {
    tap: usize,
    feed: usize,
    state: Vec<u64>,
}

impl GoRand {
    /// Creates the generator for a seed.
    pub(crate) fn new(seed: u32) -> Self {
        let warmed_up = warmed_up_state();
        let mut state = raw_state(seed, 40, 20);
        for (word, warm) in state.iter_mut().zip(warmed_up) {
            *word ^= warm;
        }
        Self { tap: 0, feed: LEN - TAP, state }
    }

    fn next(&mut self) -> u64 {
        self.tap = (self.tap + LEN - 1) % LEN;
        self.feed = (self.feed + LEN - 1) % LEN;
        let sum = self.state[self.feed].wrapping_add(self.state[self.tap]);
        self.state[self.feed] = sum;
        sum
    }

    /// Go's `Intn`: returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        let mut draw = || (self.next() & (u64::MAX >> 1)) >> 32;
        if bound.is_power_of_two() {
            return (draw() & (bound - 1)) as usize;
        }
        let last_fair = (1_u64 << 31) - 1 - (1_u64 << 31) % bound;
        let mut value = draw();
        while value > last_fair {
            value = draw();
        }
        (value % bound) as usize
    }
}

/// Go's seeding: a Lehmer generator fills the state, three draws per word.
fn raw_state(seed: u32, first_shift: u32, second_shift: u32) -> Vec<u64> {
    const MODULUS: u64 = (1 << 31) - 1;
    let mut lehmer = match u64::from(seed) % MODULUS {
        0 => 89_482_311,
        seed => seed,
    };
    let mut draw = || {
        lehmer = lehmer * 48_271 % MODULUS;
        lehmer
    };
    for _ in 0..20 {
        draw();
    }
    (0..LEN).map(|_| (draw() << first_shift) ^ (draw() << second_shift) ^ draw()).collect()
}

/// The state of a generator with seed 1 after its warm-up, by position in the ring.
fn warmed_up_state() -> &'static [u64] {
    static STATE: OnceLock<Vec<u64>> = OnceLock::new();
    STATE.get_or_init(|| {
        let seeded = raw_state(1, 20, 10);
        // The ring is written downwards from position 333: its oldest word is z[-607].
        let position = |step: u64| ((333 + LEN as u64 - step % LEN as u64) % LEN as u64) as usize;
        let oldest_first: Vec<u64> = (0..LEN as u64).map(|k| seeded[position(k)]).collect();
        let mut power = power_of_x(WARM_UP_STEPS);
        let mut state = vec![0; LEN];
        for k in 0..LEN as u64 {
            let word = power
                .iter()
                .zip(&oldest_first)
                .fold(0_u64, |sum, (factor, word)| sum.wrapping_add(factor.wrapping_mul(*word)));
            state[position(WARM_UP_STEPS + k)] = word;
            power = times_x(power);
        }
        state
    })
}

fn power_of_x(exponent: u64) -> Vec<u64> {
    let mut result = vec![0; LEN];
    result[0] = 1;
    for bit in (0..u64::BITS - exponent.leading_zeros()).rev() {
        result = square(&result);
        if exponent >> bit & 1 == 1 {
            result = times_x(result);
        }
    }
    result
}

fn times_x(mut polynomial: Vec<u64>) -> Vec<u64> {
    let top = polynomial.pop().unwrap_or_default();
    polynomial.insert(0, top);
    polynomial[LEN - TAP] = polynomial[LEN - TAP].wrapping_add(top);
    polynomial
}

fn square(polynomial: &[u64]) -> Vec<u64> {
    let mut product = vec![0_u64; 2 * LEN - 1];
    for (i, a) in polynomial.iter().enumerate() {
        for (sum, b) in product[i..].iter_mut().zip(polynomial) {
            *sum = sum.wrapping_add(a.wrapping_mul(*b));
        }
    }
    for degree in (LEN..product.len()).rev() {
        let factor = product[degree];
        product[degree - LEN] = product[degree - LEN].wrapping_add(factor);
        product[degree - TAP] = product[degree - TAP].wrapping_add(factor);
    }
    product.truncate(LEN);
    product
}
