//! Numbered slots. A number is never reused, and occupies one pointer after its entry is removed.

#[derive(Debug)]
pub(super) struct Slots<T>(Vec<Option<Box<T>>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots(Vec::new())
    }
}

impl<T> Slots<T> {
    pub(super) fn next(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, thing: T) -> usize {
        self.0.push(Some(Box::new(thing)));
        self.0.len() - 1
    }

    pub(super) fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.0.get_mut(number)?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten().map(|thing| &**thing)
    }

    pub(super) fn remove(&mut self, number: usize) -> Option<T> {
        self.0.get_mut(number)?.take().map(|thing| *thing)
    }
}
