//! Objects at rest, compressed.
//!
//! Objects of one template differ only in names, ids and times. So an object is kept as JSON that LZ4
//! compresses with the JSON of a similar object as dictionary. All objects of a group share the dictionary. A
//! tenth of the JSON remains, which is a tenth of the object.

use std::collections::HashMap;
use std::sync::Arc;

use lz4_flex::block::{DecompressError, compress_with_dict, decompress_with_dict};

/// How many objects must use a dictionary before it is replaced because it does not suit an object. Otherwise
/// a group of dissimilar objects would have a dictionary for each object.
const LEAST_USES: usize = 64;
/// The number of groups that are allowed beyond twice the groups with a dictionary in use. A dictionary is as
/// large as an object, and users can create and delete objects of any group.
const SPARE_GROUPS: usize = 1024;

/// The compressed text of an object. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    bytes: Arc<[u8]>,
    /// The length of the text; `None` where the text is not compressed.
    length: Option<u32>,
    dictionary: Option<Arc<[u8]>>,
}

impl Packed {
    fn of(text: &[u8], dictionary: Option<&Arc<[u8]>>) -> Self {
        let compressed = compress_with_dict(text, dictionary.map_or(&[], |dictionary| &dictionary[..]));
        Self::checked(text, compressed, dictionary)
    }

    /// Keeps the text uncompressed where decompression would not restore it: an object that can't be unpacked
    /// is as good as lost.
    fn checked(text: &[u8], compressed: Vec<u8>, dictionary: Option<&Arc<[u8]>>) -> Self {
        let as_it_is = || Self {
            bytes: text.into(),
            length: None,
            dictionary: None,
        };
        let Ok(length) = u32::try_from(text.len()) else {
            return as_it_is();
        };
        if compressed.len() >= text.len() {
            return as_it_is();
        }
        let packed = Self {
            bytes: compressed.into(),
            length: Some(length),
            dictionary: dictionary.cloned(),
        };
        if packed.text().is_ok_and(|out| out == text) {
            packed
        } else {
            as_it_is()
        }
    }

    pub(super) fn text(&self) -> Result<Vec<u8>, DecompressError> {
        let Some(length) = self.length else {
            return Ok(self.bytes.to_vec());
        };
        let dictionary = self.dictionary.as_deref().unwrap_or_default();
        decompress_with_dict(&self.bytes, length as usize, dictionary)
    }
}

/// The dictionaries, by group.
#[derive(Debug, Default)]
pub(super) struct Dictionaries {
    /// `None` for a group with only one object so far: a dictionary would double its memory.
    of_group: HashMap<u64, Option<Arc<[u8]>>>,
    /// The text of the first object of all. It is the dictionary for the first object of each group, since
    /// all objects of a kind share some text.
    first: Option<Arc<[u8]>>,
    /// The number of groups that causes the unused dictionaries to be dropped.
    prune_at: usize,
}

impl Dictionaries {
    pub(super) fn pack(&mut self, group: u64, text: &[u8]) -> Packed {
        let first = Arc::clone(self.first.get_or_insert_with(|| text.into()));
        let Some(dictionary) = self.of_group.get_mut(&group) else {
            self.make_room();
            self.of_group.insert(group, None);
            return Packed::of(text, Some(&first));
        };
        let packed = Packed::of(text, Some(dictionary.get_or_insert_with(|| text.into())));
        let uses = dictionary.as_ref().map_or(0, Arc::strong_count);
        if packed.bytes.len() > text.len() / 2 && uses > LEAST_USES {
            *dictionary = Some(text.into());
        }
        packed
    }

    /// Before a new group exceeds the limit, drops the dictionaries that no object uses. The limit is twice
    /// the number that was in use the last time. So a group with one object is seldom dropped before its
    /// second object, and not every object causes a walk through all groups.
    fn make_room(&mut self) {
        if self.of_group.len() < self.prune_at {
            return;
        }
        self.of_group.retain(|_, dictionary| {
            dictionary
                .as_ref()
                .is_some_and(|shared| Arc::strong_count(shared) > 1)
        });
        self.prune_at = 2 * self.of_group.len() + SPARE_GROUPS;
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

    use proptest::prelude::*;

    use super::*;

    fn machine(number: usize) -> Vec<u8> {
        let spec = r#"{"image":"debian-12","size":"standard-4","vmPool":"general-purpose"}"#;
        format!(
            r#"{{"metadata":{{"name":"m-{number}","uid":"{number:032x}"}},"spec":{spec},"status":{spec}}}"#
        )
        .into_bytes()
    }

    #[test]
    fn objects_of_a_group_share_a_dictionary() {
        let mut dictionaries = Dictionaries::default();
        let sizes: Vec<_> = (0..100)
            .map(|number| dictionaries.pack(1, &machine(number)).bytes.len())
            .collect();
        assert!(
            sizes[2..].iter().all(|size| *size < 60),
            "{sizes:?} of {}",
            machine(1).len()
        );
    }

    /// Returns an object of a group. It shares no text with other groups.
    fn of_group(group: u64) -> Vec<u8> {
        let hashes = BuildHasherDefault::<DefaultHasher>::new();
        let words = (0..32).map(|word| hashes.hash_one((group, word)));
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn two(dictionaries: &mut Dictionaries, group: u64) -> [Packed; 2] {
        [(); 2].map(|()| dictionaries.pack(group, &of_group(group)))
    }

    #[test]
    fn a_group_after_many_others_still_gets_a_dictionary() {
        let mut dictionaries = Dictionaries::default();
        let many = 3 * u64::try_from(SPARE_GROUPS).unwrap();
        let kept: Vec<_> = (0..many).map(|group| two(&mut dictionaries, group)).collect();
        let [_, second] = two(&mut dictionaries, many);
        assert!(second.bytes.len() < 30, "{}", second.bytes.len());
        assert_eq!(dictionaries.of_group.len(), kept.len() + 1);
    }

    /// Users may create and delete many objects, each of another group.
    #[test]
    fn dictionaries_of_deleted_objects_are_bounded() {
        let mut dictionaries = Dictionaries::default();
        for group in 0..5 * u64::try_from(SPARE_GROUPS).unwrap() {
            drop(two(&mut dictionaries, group));
            assert!(dictionaries.of_group.len() <= SPARE_GROUPS, "{group}");
        }
    }

    #[test]
    fn an_unsuitable_dictionary_is_replaced() {
        let mut dictionaries = Dictionaries::default();
        let mut kept = Vec::new();
        for number in 0..200_u64 {
            let other: Vec<u8> = (0..500)
                .map(|at| u8::try_from((at * 7919 + 13) % 251).unwrap())
                .collect();
            let text = if number < 100 { machine(1) } else { other };
            kept.push(dictionaries.pack(1, &text));
        }
        assert!(kept[199].bytes.len() < 60, "{}", kept[199].bytes.len());
    }

    /// A defect in the compression must not cost the object.
    #[test]
    fn a_text_that_does_not_survive_compression_is_kept_as_it_is() {
        let (text, other) = (machine(1), machine(2));
        for compressed in [compress_with_dict(&other, &[]), vec![0xff; 9]] {
            assert!(compressed.len() < text.len());
            assert_eq!(Packed::checked(&text, compressed, None).text().unwrap(), text);
        }
    }

    fn texts() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        let text = proptest::collection::vec(any::<u8>(), 0..400);
        proptest::collection::vec((0_u64..3, text), 1..20)
    }

    proptest! {
        /// Any texts, in any order.
        #[test]
        fn a_packed_text_is_unpacked_unchanged(texts in texts()) {
            let mut dictionaries = Dictionaries::default();
            let packed: Vec<_> = texts.iter().map(|(group, text)| dictionaries.pack(*group, text)).collect();
            for ((_, text), packed) in texts.iter().zip(packed) {
                prop_assert_eq!(&packed.text().unwrap(), text);
            }
        }
    }
}
