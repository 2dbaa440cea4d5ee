//! A collection that stays as it is for whoever holds it.
//!
//! Handing it out costs nothing, however large it is. Whoever changes it while nobody else holds it changes it in
//! place, else a copy. A [`Mark`] tells later whether it is still the very same one, without holding it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

/// Such a collection.
#[derive(Debug, Default)]
pub struct Still<M>(Arc<M>);

/// What a [`Still`] was.
#[derive(Debug)]
pub struct Mark<M>(Weak<M>);

impl<M> Still<M> {
    /// What it is now.
    pub fn mark(&self) -> Mark<M> {
        Mark(Arc::downgrade(&self.0))
    }

    /// Whether it is what it was. A change moves a collection that is marked, so its old place is never taken anew.
    pub fn is(&self, mark: &Mark<M>) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0), mark.0.as_ptr())
    }
}

impl<M> Default for Mark<M> {
    fn default() -> Self {
        Self(Weak::new())
    }
}

impl<M> Clone for Still<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Deref for Still<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.0
    }
}

impl<M: Clone> DerefMut for Still<M> {
    fn deref_mut(&mut self) -> &mut M {
        Arc::make_mut(&mut self.0)
    }
}

impl<M> From<M> for Still<M> {
    fn from(collection: M) -> Self {
        Self(Arc::new(collection))
    }
}

impl<M: FromIterator<T>, T> FromIterator<T> for Still<M> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self(Arc::new(items.into_iter().collect()))
    }
}

#[expect(clippy::into_iter_without_iter, reason = "the collection itself has it")]
impl<'a, M> IntoIterator for &'a Still<M>
where
    &'a M: IntoIterator,
{
    type Item = <&'a M as IntoIterator>::Item;
    type IntoIter = <&'a M as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&*self.0).into_iter()
    }
}

impl<M: PartialEq> PartialEq for Still<M> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells when it is copied.
    #[derive(Debug, Default)]
    struct Copies(usize, Vec<u8>);

    impl Clone for Copies {
        fn clone(&self) -> Self {
            Self(self.0 + 1, self.1.clone())
        }
    }

    #[test]
    fn it_is_copied_only_if_somebody_holds_it_and_a_mark_holds_nothing() {
        let mut still = Still::from(Copies::default());
        still.1.push(1);
        let mark = still.mark();
        assert!(still.is(&mark) && still.clone().is(&mark));
        still.1.push(2);
        assert!(!still.is(&mark), "it changed");
        assert_eq!(still.0.0, 0, "in place");
        let (held, mark) = (still.clone(), still.mark());
        still.1.push(3);
        assert_eq!((still.0.0, held.1.len(), still.1.len()), (1, 2, 3));
        assert!(held.is(&mark) && !still.is(&mark));
        drop(held);
        for _ in 0..100 {
            still = Still::from(Copies::default());
            assert!(!still.is(&mark), "what is gone is never met again");
        }
        assert!(!still.is(&Mark::default()));
    }
}
