//! The pods behind each Service, worked out again only where a slice or a pod has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Slice, Workload};
use crate::model::{Backends, Key};
use crate::still::Still;

/// What is known of slices, and what follows for their Services.
#[derive(Debug, Default)]
pub(super) struct Backing {
    slices: BTreeMap<Key, Arc<Slice>>,
    /// The names of a Service's slices; a slice is in the namespace of its Service and of its pods.
    of_service: BTreeMap<Key, BTreeSet<String>>,
    /// The names of the slices that name a pod.
    of_pod: BTreeMap<Key, BTreeSet<String>>,
    backends: Still<BTreeMap<Key, Arc<Backends>>>,
}

impl Backing {
    pub(super) fn backends(&self) -> &Still<BTreeMap<Key, Arc<Backends>>> {
        &self.backends
    }

    /// Takes over slices that came, changed or went, and pods of which anything changed.
    pub(super) fn change(
        &mut self,
        slices: impl IntoIterator<Item = (Key, Option<Arc<Slice>>)>,
        pods: impl IntoIterator<Item = Key>,
        pod: impl Fn(&str, &str) -> Option<Workload>,
    ) {
        let mut stale: BTreeSet<Key> = BTreeSet::new();
        for (key, slice) in slices {
            if let Some(before) = self.slices.remove(&key) {
                stale.insert(self.forget(&key, &before));
            }
            if let Some(slice) = slice {
                stale.insert(self.note(&key, &slice));
                self.slices.insert(key, slice);
            }
        }
        for (namespace, name) in pods {
            let names = self.of_pod.get(&(namespace.clone(), name)).into_iter().flatten();
            let slices = names.filter_map(|name| self.slices.get(&(namespace.clone(), name.clone())));
            stale.extend(slices.map(|slice| (namespace.clone(), slice.service.clone())));
        }
        for service in stale {
            self.work_out(service, &pod);
        }
    }

    /// Forgets whom a slice was of, and says whose it was.
    fn forget(&mut self, (namespace, name): &Key, slice: &Slice) -> Key {
        let service = (namespace.clone(), slice.service.clone());
        take(&mut self.of_service, &service, name);
        for pod in &slice.pods {
            take(&mut self.of_pod, &(namespace.clone(), pod.clone()), name);
        }
        service
    }

    fn note(&mut self, (namespace, name): &Key, slice: &Slice) -> Key {
        let service = (namespace.clone(), slice.service.clone());
        self.of_service.entry(service.clone()).or_default().insert(name.clone());
        for pod in &slice.pods {
            self.of_pod.entry((namespace.clone(), pod.clone())).or_default().insert(name.clone());
        }
        service
    }

    fn work_out(&mut self, service: Key, pod: &impl Fn(&str, &str) -> Option<Workload>) {
        let Some(names) = self.of_service.get(&service) else {
            if self.backends.contains_key(&service) {
                self.backends.remove(&service);
            }
            return;
        };
        let mut backends = Backends::default();
        for name in names {
            if let Some(slice) = self.slices.get(&(service.0.clone(), name.clone())) {
                slice.add_to(&mut backends, |name| pod(&service.0, name));
            }
        }
        if self.backends.get(&service).is_none_or(|before| **before != backends) {
            self.backends.insert(service, Arc::new(backends));
        }
    }
}

fn take(index: &mut BTreeMap<Key, BTreeSet<String>>, key: &Key, name: &str) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slice() -> impl Strategy<Value = Slice> {
        let names = |of: &'static str| prop::collection::vec(of, 0..3);
        let ports = prop::collection::btree_map("[pq]", 1u16..4, 0..2);
        ("[st]", names("10\\.0\\.0\\.[1-4]"), ports, names("[a-d]"))
            .prop_map(|(service, addresses, ports, pods)| Slice { service, addresses, ports, pods })
    }

    #[derive(Debug, Clone)]
    enum Step {
        Slice(Key, Option<Slice>),
        Pod(Key, Option<(String, bool)>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = |names: &'static str| ("[mn]", names);
        prop_oneof![
            (key("[x-z]"), prop::option::weighted(0.7, slice()))
                .prop_map(|(key, slice)| Step::Slice(key, slice)),
            (key("[a-d]"), prop::option::weighted(0.7, ("[vw]", any::<bool>())))
                .prop_map(|(key, pod)| Step::Pod(key, pod)),
        ]
    }

    proptest! {
        #[test]
        fn it_is_what_looking_at_everything_would_find(
            rounds in prop::collection::vec(prop::collection::vec(step(), 1..4), 1..20)
        ) {
            let mut backing = Backing::default();
            let (mut slices, mut pods) = (BTreeMap::new(), BTreeMap::new());
            for steps in rounds {
                let (mut changed, mut touched) = (BTreeMap::new(), BTreeSet::new());
                for step in steps {
                    match step {
                        Step::Slice(key, slice) => {
                            let slice = slice.map(Arc::new);
                            match &slice {
                                Some(slice) => slices.insert(key.clone(), Arc::clone(slice)),
                                None => slices.remove(&key),
                            };
                            changed.insert(key, slice);
                        }
                        Step::Pod(key, pod) => {
                            match pod {
                                Some((account, meshed)) => pods.insert(key.clone(), Workload { account, meshed }),
                                None => pods.remove(&key),
                            };
                            touched.insert(key);
                        }
                    }
                }
                let pod = |namespace: &str, name: &str| pods.get(&(namespace.to_owned(), name.to_owned())).cloned();
                backing.change(changed, touched, pod);
                let mut all: BTreeMap<Key, Backends> = BTreeMap::new();
                for ((namespace, _), slice) in &slices {
                    let service = (namespace.clone(), slice.service.clone());
                    slice.add_to(all.entry(service).or_default(), |name| pod(namespace, name));
                }
                let found: BTreeMap<Key, Backends> =
                    backing.backends().iter().map(|(key, one)| (key.clone(), Backends::clone(one))).collect();
                prop_assert_eq!(found, all);
            }
            let every: Vec<Key> = slices.keys().cloned().collect();
            backing.change(every.into_iter().map(|key| (key, None)), [], |_: &str, _: &str| None);
            prop_assert!(backing.of_service.is_empty() && backing.of_pod.is_empty() && backing.backends.is_empty());
        }
    }
}
