use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

fn levels() -> impl Iterator<Item = Level> {
    let all = [
        Level::Portable,
        #[cfg(target_arch = "x86_64")]
        Level::Ssse3,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2,
        #[cfg(target_arch = "x86_64")]
        Level::Gfni,
        #[cfg(target_arch = "aarch64")]
        Level::Neon,
    ];
    all.into_iter().filter(|level| *level <= Level::detect())
}

/// Adds `coefficients * srcs` to `dsts`, one product at a time.
fn twin(dsts: &mut [Vec<u8>], srcs: &[Vec<u8>], coefficients: &[u8]) {
    for (s, src) in srcs.iter().enumerate() {
        let n = dsts.len();
        for (d, dst) in dsts.iter_mut().enumerate() {
            for (to, from) in dst.iter_mut().zip(src) {
                *to ^= gf::mul(coefficients[s * n + d], *from);
            }
        }
    }
}

/// `count` vectors of `len` to `len + jitter` random bytes.
fn slices(rng: &mut Rng, count: usize, len: usize, jitter: u64) -> Vec<Vec<u8>> {
    let mut slices = vec![Vec::new(); count];
    for slice in &mut slices {
        slice.resize(len + rng.below(jitter + 1) as usize, 0);
        rng.fill(slice);
    }
    slices
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_level_adds_as_the_twin(
        seed: u64, n in 1usize..=4, m in 1usize..=4, len in 0usize..300,
        offset in 0usize..40, jitter in prop::sample::select(vec![0u64, 0, 3, 100]),
        ones in 0usize..=4,
    ) {
        let mut rng = Rng::from_seed(seed);
        let srcs = slices(&mut rng, m, len + offset, jitter);
        let dsts = slices(&mut rng, n, len + offset, jitter);
        let mut coefficients = vec![0; n * m];
        rng.fill(&mut coefficients);
        for row in coefficients.chunks_mut(n) {
            row.iter_mut().take(ones).for_each(|c| *c = 1);
        }
        let mut expected: Vec<_> = dsts.iter().map(|d| d[offset..].to_vec()).collect();
        let tails: Vec<_> = srcs.iter().map(|s| s[offset..].to_vec()).collect();
        twin(&mut expected, &tails, &coefficients);
        for level in levels() {
            let mut found = dsts.clone();
            let mut views: Vec<_> = found.iter_mut().map(|d| &mut d[offset..]).collect();
            let sources: Vec<_> = srcs.iter().map(|s| &s[offset..]).collect();
            add_group_at(level, &mut views, &sources, &coefficients);
            for (d, (found, before)) in found.iter().zip(&dsts).enumerate() {
                prop_assert_eq!(&found[offset..], &expected[d][..], "{:?}, {}", level, d);
                prop_assert_eq!(&found[..offset], &before[..offset], "wrote before its slice");
            }
        }
    }

    #[test]
    fn each_public_form_adds_as_the_twin(
        seed: u64, len in 0usize..200, n in 1usize..=9, coefficient: u8,
    ) {
        let mut rng = Rng::from_seed(seed);
        let many = slices(&mut rng, n, len, 5);
        let one = slices(&mut rng, 1, len, 5);
        let ones = vec![1; n];

        let (mut found, mut expected) = (many.clone(), many.clone());
        xor_each(&mut found.iter_mut().map(|d| &mut d[..]).collect::<Vec<_>>(), &one[0]);
        twin(&mut expected, &one, &ones);
        prop_assert_eq!(found, expected);

        let (mut found, mut expected) = (one.clone(), one);
        mul_add(&mut found[0], &many[0], coefficient);
        xor(&mut found[0], &many[0]);
        twin(&mut expected, &many[..1], &[coefficient ^ 1]);
        prop_assert_eq!(found, expected);

        let (mut found, mut expected) = (slices(&mut rng, 3, len, 5), Vec::new());
        expected.clone_from(&found);
        let mut coefficients = vec![0; 3 * n];
        rng.fill(&mut coefficients);
        let sources: Vec<_> = many.iter().map(|s| &s[..]).collect();
        let mut targets: Vec<_> = found.iter_mut().map(|d| &mut d[..]).collect();
        mul_add_many(&mut targets, &sources, &coefficients);
        twin(&mut expected, &many, &coefficients);
        prop_assert_eq!(found, expected);
    }
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn this_machine_tests_vectors() {
    assert!(levels().count() > 1, "this processor has no vectors: their kernels were not tested");
}
