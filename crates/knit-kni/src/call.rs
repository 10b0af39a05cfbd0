//! Call ids: one for each call, in metadata on the way there and back.

use tonic::metadata::{MetadataMap, MetadataValue};

/// The metadata key of a call's id, in requests and answers.
pub const KEY: &str = "knit-call-id";

/// At most so many bytes.
const LONGEST: usize = 64;

/// The id that the metadata carries, if it is one: 1 to 64 letters, digits, `.`, `_` and `-`. It goes into logs and
/// names, so nothing else is taken.
pub fn id(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(KEY)?.to_str().ok().filter(|id| is_id(id))
}

/// Puts an id into metadata. What is no id is left out.
pub fn set_id(metadata: &mut MetadataMap, id: &str) {
    if let (true, Ok(value)) = (is_id(id), MetadataValue::try_from(id)) {
        metadata.insert(KEY, value);
    }
}

fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_and_anything_else_does_not() {
        let mut metadata = MetadataMap::new();
        set_id(&mut metadata, "a1.b_2-C");
        assert_eq!(id(&metadata), Some("a1.b_2-C"));
        for wrong in ["", "a b", "a/b", "ä", &"a".repeat(65)] {
            let mut metadata = MetadataMap::new();
            set_id(&mut metadata, wrong);
            assert_eq!(id(&metadata), None, "{wrong:?}");
        }
        let mut foreign = MetadataMap::new();
        foreign.insert(KEY, "a b".parse().unwrap());
        assert_eq!(id(&foreign), None);
    }
}
