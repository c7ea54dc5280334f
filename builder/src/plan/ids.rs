//! The two plan ids: what guards a resume and names the folders of a cache.
//!
//! The image plan id covers the deal of image links and the image recipe, not any text. The text
//! plan id covers the image plan, the text recipe and the source's text.

use rayon::prelude::*;
use serde::Serialize;
use stoker_formats::{ContentHash, PlanId};

use super::Plan;
use crate::error::{Error, Result};

/// The ids of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanIds {
    /// Names the `images-` folder.
    pub image: PlanId,
    /// Names the `text-` folder.
    pub text: PlanId,
}

/// Partitions whose lists of keys lie in memory at once.
const WAVE_PARTITIONS: usize = 16;

pub(crate) fn image_plan_id(plan: &Plan, recipe: &impl Serialize) -> Result<PlanId> {
    let mut hasher = blake3::Hasher::new_derive_key("stoker image plan 1");
    update_json(&mut hasher, recipe)?;
    hasher.update(&plan.deal.seed().to_le_bytes());
    for split in &plan.deal.splits {
        update_text(&mut hasher, &split.name);
        hasher.update(&split.partitions.to_le_bytes());
    }
    let partitions: Vec<u32> = (0..plan.deal.partitions()).collect();
    for wave in partitions.chunks(WAVE_PARTITIONS) {
        let lists: Vec<Vec<[u8; 16]>> = wave.par_iter().map(|at| keys(plan, *at)).collect();
        for keys in lists {
            hasher.update(&(keys.len() as u64).to_le_bytes());
            hasher.update(keys.as_flattened());
        }
    }
    Ok(id(&hasher))
}

/// The keys of a partition's images, in plan order.
fn keys(plan: &Plan, partition: u32) -> Vec<[u8; 16]> {
    let images = plan.partition_images(partition);
    let keys = images
        .iter()
        .map(|image| plan.images[*image as usize].key.0);
    keys.collect()
}

pub(crate) fn text_plan_id(
    plan: &Plan,
    image_plan: PlanId,
    recipe: &impl Serialize,
) -> Result<PlanId> {
    let mut hasher = blake3::Hasher::new_derive_key("stoker text plan 1");
    hasher.update(&image_plan.0);
    update_json(&mut hasher, recipe)?;
    for file in &plan.files {
        update_text(&mut hasher, &file.name);
        update_text(&mut hasher, &format!("{:?}", file.shape));
        hasher.update(&file.hash.0);
    }
    Ok(id(&hasher))
}

fn id(hasher: &blake3::Hasher) -> PlanId {
    ContentHash(*hasher.finalize().as_bytes()).into()
}

fn update_text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

fn update_json(hasher: &mut blake3::Hasher, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|error| Error::Usage {
        what: format!("recipe cannot be written as JSON: {error}"),
        hint: String::new(),
    })?;
    update_text(hasher, &text);
    Ok(())
}
