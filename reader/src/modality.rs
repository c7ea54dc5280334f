//! Which micro-steps have images, so that in each all ranks have some or none has.
//!
//! Owns the numbers of that arrangement. Invariant: the numbers that it asks for can be met, whoever holds what.

use crate::order_error::OrderError;
use crate::schedule::Position;
use crate::world::World;

/// The arrangement of one global batch: every rank has images in its first `steps` micro-batches and none in the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageSteps {
    /// Micro-steps with images.
    pub(crate) steps: u32,
    /// Units with images that each rank gets at least.
    pub(crate) least: u32,
    /// And at most.
    pub(crate) most: u32,
    /// How many each micro-batch with images gets at least: none where a dummy stands for one.
    pub(crate) least_each: u32,
    /// And at most.
    pub(crate) most_each: u32,
}

impl ImageSteps {
    /// The arrangement of `images` units with images. Steps with images are as many as can be, so that patches are spread;
    /// where it does not work out without dummies, as few as can be, so that few dummies are needed.
    pub(crate) fn new(
        images: u32,
        world: &World,
        dummies: bool,
        at: Position,
    ) -> Result<Self, OrderError> {
        let (ranks, micro) = (world.world_size(), world.micro_batch_size());
        let least_steps = images.div_ceil(ranks * micro);
        let steps = (images / ranks).min(world.micro_batches());
        if steps >= least_steps {
            return Ok(Self {
                steps,
                least: steps,
                most: steps * micro,
                least_each: 1,
                most_each: micro,
            });
        }
        if dummies {
            // Fewer images than micro-batches that need one: each gets one at most.
            return Ok(Self {
                steps: least_steps,
                least: images / ranks,
                most: least_steps,
                least_each: 0,
                most_each: 1,
            });
        }
        Err(OrderError::Modalities {
            epoch: at.epoch,
            position: at.position,
            images,
            ranks,
            micro_batch_size: micro,
        })
    }

    /// How many units with images each node takes, given how many ranks it has and how many units with images would go
    /// there: as close to that as the ranks allow.
    pub(crate) fn of_nodes(&self, ranks: &[u32], found: &[u32]) -> Vec<u32> {
        let least = |node: usize| ranks[node] * self.least;
        let most = |node: usize| ranks[node] * self.most;
        let mut images: Vec<u32> = found
            .iter()
            .enumerate()
            .map(|(node, found)| (*found).clamp(least(node), most(node)))
            .collect();
        let wanted: u32 = found.iter().sum();
        let mut given: u32 = images.iter().sum();
        // By images a rank, the first of equal ones.
        let fewer = |a: (u32, usize), b: (u32, usize)| {
            u64::from(a.0) * u64::from(ranks[b.1]) < u64::from(b.0) * u64::from(ranks[a.1])
        };
        while given != wanted {
            let more = given < wanted;
            let open = (0..images.len()).filter(|node| {
                if more {
                    images[*node] < most(*node)
                } else {
                    images[*node] > least(*node)
                }
            });
            let Some((_, node)) = open.map(|node| (images[node], node)).reduce(|best, next| {
                let better = if more {
                    fewer(next, best)
                } else {
                    fewer(best, next)
                };
                if better { next } else { best }
            }) else {
                break;
            };
            if more {
                images[node] += 1;
                given += 1;
            } else {
                images[node] -= 1;
                given -= 1;
            }
        }
        images
    }
}
