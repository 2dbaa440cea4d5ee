//! The first generation's wire: the same eight calls, plainer messages.

use tonic::{Request, Response, Status};

use super::Tags;
use crate::error::Error;
use crate::plan::tags::Mapping;
use crate::wire::seed_tags::tag_service_server::{TagService, TagServiceServer};
use crate::wire::seed_tags::{BasicResponse, SubscriberList, Subscription, Tag, TagMapping, TagMappingList};

pub(super) fn service(tags: Tags) -> TagServiceServer<Seed> {
    TagServiceServer::new(Seed(tags))
}

pub(super) struct Seed(Tags);

impl From<Mapping> for TagMapping {
    fn from(mapping: Mapping) -> Self {
        let Mapping { name, child_tags, uri, ip } = mapping.with_both_halves();
        Self { tag_name: name, child_tags, uri, ip }
    }
}

impl From<TagMapping> for Mapping {
    fn from(TagMapping { tag_name, child_tags, uri, ip }: TagMapping) -> Self {
        Self { name: tag_name, child_tags, uri, ip }.without_empty_halves()
    }
}

fn done(message: String) -> Response<BasicResponse> {
    Response::new(BasicResponse { success: true, message })
}

#[tonic::async_trait]
impl TagService for Seed {
    async fn set_tag(&self, request: Request<TagMapping>) -> Result<Response<BasicResponse>, Status> {
        let tag = Mapping::from(request.into_inner());
        self.0.tell(self.0.set(&tag).await?);
        Ok(done(format!("Set tag {}", tag.name)))
    }

    async fn get_tag(&self, request: Request<Tag>) -> Result<Response<TagMapping>, Status> {
        let name = request.into_inner().tag_name;
        let tag = self.0.get(&name).unwrap_or_else(|| Mapping { name, ..Mapping::default() });
        Ok(Response::new(tag.into()))
    }

    async fn resolve_tag(&self, request: Request<Tag>) -> Result<Response<TagMappingList>, Status> {
        let mappings = self.0.resolve(&request.into_inner().tag_name).into_iter().map(Into::into).collect();
        Ok(Response::new(TagMappingList { mappings }))
    }

    /// Each named child leaves.
    async fn delete_tag_member(
        &self,
        request: Request<TagMapping>,
    ) -> Result<Response<BasicResponse>, Status> {
        let TagMapping { tag_name, child_tags, .. } = request.into_inner();
        if child_tags.is_empty() {
            return Err(Error::invalid("child_tags", "must name at least one member").into());
        }
        for child in &child_tags {
            self.0.tell(self.0.delete_member(&tag_name, child).await?);
        }
        Ok(done(format!("Deleted {} from tag {tag_name}", child_tags.join(", "))))
    }

    async fn delete_tag(&self, request: Request<Tag>) -> Result<Response<BasicResponse>, Status> {
        let name = request.into_inner().tag_name;
        self.0.tell(self.0.delete(&name).await?);
        Ok(done(format!("Deleted tag {name}")))
    }

    async fn subscribe(&self, request: Request<Subscription>) -> Result<Response<BasicResponse>, Status> {
        let Subscription { tag_name, subscriber } = request.into_inner();
        self.0.subscribe(&tag_name, &subscriber).await?;
        Ok(done(format!("Subscribed {subscriber} to tag {tag_name}")))
    }

    async fn unsubscribe(&self, request: Request<Subscription>) -> Result<Response<BasicResponse>, Status> {
        let Subscription { tag_name, subscriber } = request.into_inner();
        self.0.unsubscribe(&tag_name, &subscriber).await?;
        Ok(done(format!("Unsubscribed {subscriber} from tag {tag_name}")))
    }

    async fn get_subscribers(&self, request: Request<Tag>) -> Result<Response<SubscriberList>, Status> {
        let subscribers = self.0.subscribers(&request.into_inner().tag_name);
        Ok(Response::new(SubscriberList { subscribers }))
    }
}
