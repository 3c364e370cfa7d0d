//! The protobuf wire format: a sequence of numbered fields.

/// The value of a field, as encoded on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wire<'a> {
    Number(u64),
    Eight([u8; 8]),
    Four([u8; 4]),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    /// The bytes of a string or message.
    pub(super) fn bytes(&self) -> Result<&'a [u8], String> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            _ => Err("is neither a string nor a message".to_owned()),
        }
    }

    /// An integer.
    pub(super) fn number(&self) -> Result<u64, String> {
        match self {
            Wire::Number(number) => Ok(*number),
            _ => Err("is not a number".to_owned()),
        }
    }

    /// A floating-point number.
    pub(super) fn double(&self) -> Result<f64, String> {
        match self {
            Wire::Eight(bytes) => Ok(f64::from_le_bytes(*bytes)),
            Wire::Four(bytes) => Ok(f64::from(f32::from_le_bytes(*bytes))),
            _ => Err("is not a floating-point number".to_owned()),
        }
    }
}

/// Reads fields one by one.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

const SHORT: &str = "the message ends early";

impl<'a> Reader<'a> {
    /// The next field and its number; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| "a field number is invalid")?;
        let value = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Eight(self.fixed()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| SHORT)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Four(self.fixed()?),
            other => return Err(format!("unknown wire type {other}")),
        };
        Ok(Some((number, value)))
    }

    /// The next number of a packed list; `None` at the end.
    pub(super) fn packed(&mut self) -> Result<Option<u64>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        self.varint().map(Some)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| SHORT.to_owned())
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.fixed()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("a number is longer than 64 bits".to_owned())
    }
}
