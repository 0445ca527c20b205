// Every link of the studio.
export const paths = {
  overview: () => "/",
  tasks: (query = "") => (query ? `/tasks?${query}` : "/tasks"),
  task: (id: string, tab = "") =>
    `/tasks/${encodeURIComponent(id)}${tab ? `/${encodeURIComponent(tab)}` : ""}`,
  queue: (group = "") => (group ? `/queue?group=${encodeURIComponent(group)}` : "/queue"),
  nodes: () => "/nodes",
};
