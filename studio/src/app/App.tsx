import { lazy, Suspense, type ReactNode } from "react";
import { Route, Switch } from "wouter";
import { LoginPage } from "../features/login/page";
import { TasksPage } from "../features/tasks/page";
import { useTexts } from "../i18n";
import { Live } from "../live/store";
import { Boundary } from "../ui/boundary";
import { SessionGate } from "./session";
import { Shell } from "./shell";

const TaskPage = lazy(() => import("../features/task/page"));
const OverviewPage = lazy(() => import("../features/overview/page"));
const QueuePage = lazy(() => import("../features/queue/page"));
const NodesPage = lazy(() => import("../features/nodes/page"));

export function App(): ReactNode {
  return (
    <SessionGate login={(entered) => <LoginPage entered={entered} />}>
      <Live>
        <Shell>
          <Boundary>
            <Suspense fallback={null}>
              <Switch>
                <Route path="/">
                  <OverviewPage />
                </Route>
                <Route path="/tasks">
                  <TasksPage />
                </Route>
                <Route path="/tasks/:id/:tab?">
                  {({ id, tab }) => <TaskPage key={id} id={id} tab={tab ?? ""} />}
                </Route>
                <Route path="/queue">
                  <QueuePage />
                </Route>
                <Route path="/nodes">
                  <NodesPage />
                </Route>
                <Route>
                  <NotFound />
                </Route>
              </Switch>
            </Suspense>
          </Boundary>
        </Shell>
      </Live>
    </SessionGate>
  );
}

function NotFound(): ReactNode {
  const t = useTexts();
  return <h1>{t.app.notFound}</h1>;
}
