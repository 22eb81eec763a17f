//! Finds the items of a large list by their texts, at 16 bytes for each text.

use std::hash::{BuildHasher as _, RandomState};

/// The indices of items by text. The index keeps no text, so each hit must be compared with the wanted text.
#[derive(Clone, Debug, Default)]
pub(super) struct TextIndex {
    hashes: RandomState,
    /// The hash of the text and the index of the item, sorted.
    places: Vec<(u64, usize)>,
}

impl TextIndex {
    /// Indexes all items, each by up to two texts.
    pub(super) fn new<'a, T>(all: &'a [T], texts: impl Fn(&'a T) -> [Option<&'a str>; 2]) -> Self {
        let hashes = RandomState::new();
        let count = all.iter().map(|one| texts(one).into_iter().flatten().count());
        let mut places = Vec::with_capacity(count.sum());
        for (place, one) in all.iter().enumerate() {
            let texts = texts(one).into_iter().flatten();
            places.extend(texts.map(|text| (hashes.hash_one(text), place)));
        }
        places.sort_unstable();
        Self { hashes, places }
    }

    /// The indices of the items that may have this text.
    pub(super) fn places<'a>(&'a self, text: &str) -> impl Iterator<Item = usize> + use<'a> {
        let wanted = self.hashes.hash_one(text);
        let first = self.places.partition_point(|(hash, _)| *hash < wanted);
        let found = self.places[first..].iter();
        found
            .take_while(move |(hash, _)| *hash == wanted)
            .map(|(_, place)| *place)
    }
}
